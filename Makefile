PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

.PHONY: demo docs test test-all lint types conformance frameworks tutorials clean

demo: .venv/demo
	$(BIN)/python examples/demo.py

docs: .venv/docs
	$(BIN)/python docs/make_site.py

test: lint types
	$(BIN)/python -m pytest

test-all: lint types
	$(INSTALL) ".[dev,docs,frameworks,rl]"
	$(BIN)/python -m pytest --all

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/dev
	$(BIN)/mypy

conformance: .venv/dev
	$(BIN)/python tests/conformance/run.py

frameworks: .venv/dev
	$(INSTALL) ".[dev,frameworks]"
	$(BIN)/python -m pytest tests/frameworks tests/in_jax

tutorials: .venv/dev
	$(INSTALL) ".[dev,frameworks,tutorials]"
	$(BIN)/python docs/tutorials/run.py

.venv/demo: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) ".[demo,cpu]"
	touch $@

.venv/docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) ".[docs]"
	touch $@

.venv/dev: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(INSTALL) ".[dev]"
	touch $@

clean:
	rm -rf .venv build site .mypy_cache .pytest_cache .ruff_cache
