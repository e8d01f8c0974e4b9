# Two commands matter: `make demo` and `make test`. Each makes its own environment on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1

CORE := $(VENV)/.core
DEV := $(VENV)/.dev
NOTEBOOK := $(VENV)/.notebook
DOCS := $(VENV)/.docs

.PHONY: demo notebook pages test test-quick test-hard coverage lint bench docs release clean

demo: $(CORE)
	$(BIN)/induction-memory demo

notebook: $(NOTEBOOK)
	$(BIN)/jupyter lab docs/notebooks

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

# The site in docs/_build/html with the pages of three runs. Offline once the packages are installed.
docs: $(DOCS)
	test -f docs/pages/four-heads.html || $(BIN)/python analyses/pages.py
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html

# Source archive and wheel in dist/, checked; the wheel is tried in an empty environment.
release: $(DEV)
	rm -rf dist
	$(BIN)/python -m build --no-isolation
	$(BIN)/python -m tests.release dist

$(CORE): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q torch    # first and pinned: a later resolver would take a build with CUDA
	$(BIN)/pip install -q -e .
	touch $@

$(DEV): $(CORE)
	$(BIN)/pip install -q -e '.[dev]'
	touch $@

$(DOCS): $(CORE)
	$(BIN)/pip install -q -e '.[docs]'
	touch $@

$(NOTEBOOK): $(CORE)
	$(BIN)/pip install -q -e '.[notebook]'
	touch $@

clean:
	rm -rf $(VENV) build dist docs/_build docs/reference/api .pytest_cache .ruff_cache .hypothesis *.egg-info
