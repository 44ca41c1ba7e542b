PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
MATRIX ?=

.PHONY: demo test test-fast lint check clean

demo: $(VENV)/.installed
	$(BIN)/python examples/demo.py $(MATRIX)

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -m ""

test-fast: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint test-fast

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
