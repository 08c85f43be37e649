# make demo    see the model in the package work        make test    set up, then every check
# make check   every check, in an environment that is   make docs    write the generated pages anew
#
# Set-up runs once per change of pyproject.toml or constraints.txt; the stamps in .venv remember it.

PYTHON ?= python3
BIN := .venv/bin
GROUND := pyproject.toml constraints.txt

.PHONY: demo test check docs

demo: .venv/base.stamp
	$(BIN)/redraft demo
	@echo "next: . $(BIN)/activate; redraft --help"

test: .venv/dev.stamp
	$(MAKE) check

check:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest --numprocesses 2 --dist loadfile

docs: .venv/dev.stamp
	$(BIN)/python bench/generate.py

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/base.stamp: $(GROUND) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

.venv/dev.stamp: $(GROUND) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch .venv/base.stamp $@
