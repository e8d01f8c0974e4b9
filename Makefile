# Two commands matter: `make demo` and `make test`. Each makes its own environment on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_CONSTRAINT = $(CURDIR)/$(VENV)/constraints.txt
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE    # tests start many processes, each of which would compile the package again

TL4_TESTS := tests/model tests/runner tests/probes tests/interventions tests/trajectory tests/training tests/heads \
	tests/views/test_attention.py tests/cli tests/source tests/test_notebooks.py

CORE := $(VENV)/.core
DEV := $(VENV)/.dev
NOTEBOOK := $(VENV)/.notebook
DOCS := $(VENV)/.docs

.PHONY: demo notebook pages test test-quick test-hard test-tl4 test-oldest test-newest coverage lint bench growth docs release clean

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
test-tl4: .venv-tl4/.dev
	OMP_NUM_THREADS=1 .venv-tl4/bin/python -m pytest -q -n 2 --dist worksteal $(TL4_TESTS)

# With the oldest versions that pyproject.toml allows, and with the newest that pip finds; each in its own environment.
test-oldest test-newest: test-%: .venv-%/.dev
	OMP_NUM_THREADS=1 .venv-$*/bin/python -m pytest -q -n 2 --dist worksteal

coverage: $(DEV)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist worksteal --cov=induction_memory --cov-report=term-missing:skip-covered

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# `make bench growth` measures one part: any name of bench/.
bench: $(DEV)
	$(BIN)/python -m bench $(filter-out $@,$(MAKECMDGOALS))

growth: bench
	@:

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

# A torch that is in the environment already, such as a build for the CPU, stays if pyproject.toml allows it.
$(VENV)/constraints.txt: pyproject.toml constraints.txt tests/pins.py
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python tests/pins.py tested > $@

$(CORE): $(VENV)/constraints.txt
	$(BIN)/pip install -q torch    # first, for the build at hand
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

# .venv-tl4, .venv-oldest, .venv-newest: tests/pins.py says with which versions.
.venv-%/.dev: PIP_CONSTRAINT = $(CURDIR)/$(@D)/constraints.txt
.venv-%/.dev: pyproject.toml constraints.txt tests/pins.py
	test -x $(@D)/bin/python || $(PYTHON) -m venv $(@D)
	$(@D)/bin/python tests/pins.py $* > $(@D)/constraints.txt
	$(@D)/bin/pip install -q torch
	$(@D)/bin/pip install -q -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .venv-tl4 .venv-oldest .venv-newest build dist docs/_build docs/reference/api .pytest_cache .ruff_cache .hypothesis *.egg-info
