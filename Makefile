# Needs python3 (3.10 or later), make and PyPI; everything else goes into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
PYTEST_ARGS ?=

.PHONY: help demo test test-oldest test-coverage test-cupy golden golden-write stale bench paper paper-quick taxi-grid \
    paper-control paper-control-quick lint docs clean

help:
	@echo "make demo    simulate taxi logs, estimate a policy's value from them, draw a plot"
	@echo "make test    run the test suite"
	@echo "make test-oldest     run the tests that need no extras on the lowest versions pyproject.toml allows"
	@echo "make test-coverage   run the test suite and show which lines it does not reach"
	@echo "make test-cupy   let CuPy's own compiler read the CUDA kernels; needs no GPU, takes 600 MB"
	@echo "make golden  compare answers, errors and flags with what is recorded; make golden-write: record them"
	@echo "make stale   list committed results that other code made, and what makes them anew"
	@echo "make bench   run the benchmarks"
	@echo "make paper   run the paper's tabular experiments in full; make paper-quick: a part, in minutes"
	@echo "make taxi-grid   what other code made of the tables of Taxi, anew, in two processes"
	@echo "make paper-control   run its control experiments (hours); make paper-control-quick: one log per setting"
	@echo "    both go on from what is there; FRESH=1 computes anew what other code made"
	@echo "make lint    check style, types and the direction of imports"
	@echo "make docs    build the documentation into site/"
	@echo "make clean   remove the virtual environment and everything built"
	@echo "PYTHON=python3.12 make ... picks the interpreter of the virtual environment"

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.10 or later is needed; set PYTHON=..." if sys.version_info < (3, 10) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.demo: pyproject.toml | $(VENV)/.made
	$(PIP) --editable ".[cli,plots]"
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/.made
	$(PIP) --editable ".[dev]"
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo
	$(BIN)/lingendice demo

# One process per core: threads of BLAS on top of that would only wait for each other.
test: $(VENV)/.dev
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile $(PYTEST_ARGS)

test-coverage: $(VENV)/.dev
	$(PIP) coverage pytest-cov
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 NUMBA_CACHE_DIR=$(VENV)/numba $(BIN)/python -m pytest --numprocesses auto \
	    --maxprocesses 4 --dist loadfile --cov=lingendice --cov-report=term-missing:skip-covered $(PYTEST_ARGS)

# The lowest versions that pyproject.toml allows, on the oldest Python found.
# A shim of pyenv may be found and not run: what counts is that it runs.
OLDEST_PYTHON ?= $(shell for python in python3.10 $(HOME)/.pyenv/versions/3.10.*/bin/python; do \
    $$python -c "" 2>/dev/null && echo $$python && break; done)
OLDEST_VENV := .venv-oldest
OLDEST_TESTS ?= tests
$(OLDEST_VENV)/.made: pyproject.toml tests/project/lowest_versions.py
	@test -n "$(OLDEST_PYTHON)" || { echo "no Python 3.10 found; set OLDEST_PYTHON=..."; exit 1; }
	$(OLDEST_PYTHON) -m venv $(OLDEST_VENV)
	$(OLDEST_VENV)/bin/python tests/project/lowest_versions.py cli plots graphs io dask > $(OLDEST_VENV)/lowest.txt
	$(OLDEST_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(OLDEST_VENV)/lowest.txt \
	    --editable ".[cli,plots,graphs,io,dask]" pytest pytest-benchmark pytest-xdist hypothesis mpmath polars
	@touch $@

.PHONY: oldest-python
oldest-python:
	@test -n "$(OLDEST_PYTHON)"

test-oldest: $(OLDEST_VENV)/.made
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(OLDEST_VENV)/bin/python -m pytest --numprocesses auto --maxprocesses 4 \
	    --dist loadfile $(OLDEST_TESTS) $(PYTEST_ARGS)

# In an environment of its own: CuPy and NVRTC are large, and nothing else needs them.
CUPY_VENV := .venv-cupy
$(CUPY_VENV)/.made: pyproject.toml
	$(PYTHON) -m venv $(CUPY_VENV)
	$(CUPY_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[cuda12]" \
	    nvidia-cuda-nvrtc-cu12 pytest pytest-benchmark hypothesis
	@touch $@

test-cupy: $(CUPY_VENV)/.made
	LINGENDICE_REQUIRE_CUPY=1 $(CUPY_VENV)/bin/python -m pytest tests/gpu/test_cupy.py $(PYTEST_ARGS)

# Fails where an answer moved, or how good answers are. Whoever records anew says in the commit which changes were meant.
golden: $(VENV)/.dev
	$(BIN)/python benchmarks/golden/run.py

golden-write: $(VENV)/.dev
	$(BIN)/python benchmarks/golden/run.py --write

stale:
	@$(PYTHON) benchmarks/provenance.py

bench: $(VENV)/.dev
	OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest benchmarks --benchmark-enable $(PYTEST_ARGS)
	$(BIN)/python docs/hooks.py  # the tables of the README follow the results

# Kept results of other code are kept, and said to be; FRESH=1 computes them anew.
FRESH ?=
ANEW := $(if $(filter-out 0,$(FRESH)),--fresh)

# Citation graphs come from LINGENDICE_DATA or ../shared where present, else by download.
paper: $(VENV)/.dev
	$(BIN)/python benchmarks/paper/taxi.py $(ANEW)
	$(BIN)/python benchmarks/paper/pagerank.py
	$(BIN)/python benchmarks/paper/taxi_default.py
	$(BIN)/python benchmarks/paper/pagerank_smoothing.py
	$(BIN)/python benchmarks/paper/opr_ablations.py --write

paper-quick: $(VENV)/.dev
	$(BIN)/python benchmarks/paper/taxi.py --quick
	$(BIN)/python benchmarks/paper/pagerank.py --quick

# What other code made of the 144 settings, then the table of the default, which the page on speed shows.
taxi-grid: $(VENV)/.dev
	$(BIN)/python benchmarks/paper/taxi.py --fresh --workers 2 $(TAXI_ARGS)
	$(BIN)/python benchmarks/paper/taxi_default.py --seeds 60 --workers 2
	$(BIN)/python docs/hooks.py

# Each estimate is kept as it is made: a run may be stopped and started again.
paper-control: $(VENV)/.dev
	$(BIN)/python benchmarks/paper/control.py --logs 20 --sweeps 6 --ablations 6 --neural 20 $(ANEW)

paper-control-quick: $(VENV)/.dev
	$(BIN)/python benchmarks/paper/control.py --logs 1

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy tests/typed_calls.py
	$(BIN)/lint-imports --no-cache

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

clean:
	rm -rf $(VENV) $(CUPY_VENV) $(OLDEST_VENV) build dist site demo_output .pytest_cache .mypy_cache .ruff_cache \
	    .import_linter_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
