# Two commands matter: `make demo` and `make test`. Each makes its own environment on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE    # tests start many processes, each of which would compile the package again

TL4_VENV := .venv-tl4
TL4_BIN := $(TL4_VENV)/bin
TL4_CONSTRAINT := $(TL4_VENV)/constraints.txt
TL4_TESTS := tests/model tests/runner tests/probes tests/interventions tests/trajectory tests/training tests/heads \
	tests/views/test_attention.py tests/cli tests/test_subject.py tests/test_notebooks.py

CORE := $(VENV)/.core
TL4 := $(TL4_VENV)/.dev
DEV := $(VENV)/.dev
NOTEBOOK := $(VENV)/.notebook
DOCS := $(VENV)/.docs

.PHONY: demo notebook pages test test-quick test-hard test-tl4 coverage lint bench docs release clean

demo: $(CORE)
	$(BIN)/induction-memory demo

# JupyterLab refuses root unless told; in a container there is often no other user. LAB holds further options of it.
notebook: $(NOTEBOOK)
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) $(LAB) docs/notebooks

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

# The core of the suite beside TransformerLens 4, in an environment of its own.
test-tl4: $(TL4)
	OMP_NUM_THREADS=1 $(TL4_BIN)/python -m pytest -q -n 2 --dist worksteal $(TL4_TESTS)

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

# The same versions, with TransformerLens 4 instead of 3.9.
$(TL4): pyproject.toml constraints.txt
	test -x $(TL4_BIN)/python || $(PYTHON) -m venv $(TL4_VENV)
	sed 's/^transformer-lens==.*/transformer-lens==4.3.0/' constraints.txt > $(TL4_CONSTRAINT)
	PIP_CONSTRAINT=$(CURDIR)/$(TL4_CONSTRAINT) $(TL4_BIN)/pip install -q torch
	PIP_CONSTRAINT=$(CURDIR)/$(TL4_CONSTRAINT) $(TL4_BIN)/pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) $(TL4_VENV) build dist docs/_build docs/reference/api .pytest_cache .ruff_cache .hypothesis *.egg-info
