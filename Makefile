PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types conformance frameworks clean

demo: .venv/installed
	$(BIN)/python examples/demo.py

test: lint types
	$(BIN)/python -m pytest

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

conformance: .venv/installed
	$(BIN)/python tests/conformance/run.py

frameworks: .venv/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,frameworks]"
	$(BIN)/python -m pytest tests/frameworks

.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
