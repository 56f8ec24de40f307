# The same commands that CI and the README use.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: install check test bench
install: ## a virtual environment with everything that development needs
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable '.[dev]'

check: ## formatting, lint, types, layers
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

test: ## all tests that this machine can run; the others say why they are skipped
	$(BIN)/pytest

bench: ## the quick benchmarks, with their targets
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/makespan.py
