# Two commands matter: `make demo` and `make test`. Each makes its own environment on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

CORE := $(VENV)/.core
DEV := $(VENV)/.dev

.PHONY: demo pages test test-quick test-hard coverage lint bench docs clean

demo: $(CORE)
	$(BIN)/induction-memory demo

pages: $(CORE)
	$(BIN)/python analyses/pages.py

test: $(DEV)
	$(BIN)/python -m tests.browser --install || true
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal

# Without the slow tests, doctests and run-time type checks: under a minute on two cores.
test-quick: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -o addopts=--strict-markers -m 'not slow and not hard' tests

test-hard: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal -m hard

coverage: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --cov=induction_memory --cov-report=term-missing:skip-covered

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(DEV)
	$(BIN)/python -m bench

$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q torch    # first and pinned: a later resolver would take a build with CUDA
	$(BIN)/pip install -q -e .
	touch $@

$(DEV): $(CORE)
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis *.egg-info
