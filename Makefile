# Everything here sets up a virtual environment of its own first, .venv-<python version>, and needs only Python 3.11 or
# newer and make. Choose another Python with `make test PYTHON=python3.12`.

PYTHON ?= python3
WORKERS ?= 2
TESTS ?=

VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
BIN := $(VENV)/bin
READY_TO_RUN := $(VENV)/.ready-to-run
READY_TO_TEST := $(VENV)/.ready-to-test

export JAX_PLATFORMS ?= cpu
export KERAS_BACKEND ?= jax
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help demo test slow lint format conformance passes bench fuzz clean
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 20

demo: $(READY_TO_RUN) ## export a small model, check it against JAX, say where it is
	@$(BIN)/python examples/demo.py

test: lint ## check style and types, then run the tests (some: make test TESTS=tests/test_emit.py)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow" $(TESTS)

slow: $(READY_TO_TEST) ## run the tests that `make test` leaves out
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow $(TESTS)

lint: $(READY_TO_TEST) ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY_TO_TEST) ## put the code into the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

conformance: $(READY_TO_TEST) ## run all of JAX's own test cases and write docs/coverage.md
	$(BIN)/python -m tests.conformance --workers $(WORKERS) --table docs/coverage.md \
		--beside $(wildcard build/conformance/jax-*.json)

passes: $(READY_TO_TEST) ## export a sample of those cases with and without the optimizer, compare how close they are to JAX
	$(BIN)/python -m tests.conformance --workers $(WORKERS) --sample 4 --passes

bench: $(READY_TO_TEST) ## measure exports and models against JAX
	$(BIN)/python -m benchmarks

fuzz: $(READY_TO_TEST) ## export random programs and compare them with JAX
	$(BIN)/python -m tests.fuzz

clean: ## remove the virtual environments and everything that was built
	rm -rf .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jax2onnx needs Python 3.11 or newer: make PYTHON=...")'
	@$(PYTHON) -m venv $(VENV)

$(READY_TO_RUN): $(VENV)/pyvenv.cfg pyproject.toml
	@echo "Setting up $(VENV) ..."
	@$(BIN)/pip install --quiet --editable '.[verify]'
	@touch $@

$(READY_TO_TEST): $(VENV)/pyvenv.cfg pyproject.toml
	@echo "Setting up $(VENV) with all test dependencies (takes a few minutes the first time) ..."
	@$(BIN)/pip install --quiet --editable '.[dev,frameworks]'
	@touch $(READY_TO_RUN) $@
