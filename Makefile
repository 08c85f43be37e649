# make demo      see the model in the package work      make test       set up, then what each commit has to pass
# make test-all  the same, then what is slow            make test-slow  set up, then what is slow
# make check     make test without the set-up           make docs       write the generated pages anew
# make wheel     build the package into dist/           make site       build the documentation into site/
#
# Set-up runs once per change of pyproject.toml or constraints.txt; the stamps in .venv remember it.

PYTHON ?= python3
BIN := .venv/bin
GROUND := pyproject.toml constraints.txt

# Two processes: what two cores and 2 GB hold. Tests are handed out one by one, so one long file holds nobody up.
PYTEST := $(BIN)/pytest --numprocesses 2 --dist worksteal

.PHONY: demo test test-slow test-all check lint typed fast docs wheel site

demo: .venv/base.stamp
	$(BIN)/redraft demo
	@echo "next: . $(BIN)/activate; redraft --help"

test: .venv/dev.stamp
	$(MAKE) check

test-slow: .venv/scale.stamp
	$(PYTEST) -m "slow and not gpu"

test-all: test
	$(MAKE) test-slow

check:
	$(MAKE) --jobs 2 --output-sync lint typed
	$(MAKE) fast

lint:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Where tensors have shapes. The hook that checks them works on a whole process, and makes every call slower.
SHAPED := redraft.cache,redraft.constraints,redraft.diffusion,redraft.engine.reading,redraft.engine.runner,redraft.model

typed:
	$(BIN)/pytest -m "typed and not slow" --jaxtyping-packages=$(SHAPED),beartype.beartype `grep -rl --include='*.py' 'mark[.]typed' tests`

fast:
	$(PYTEST) -m "not typed and not gpu and not slow"

docs: .venv/dev.stamp
	$(BIN)/python bench/generate.py

wheel: | $(BIN)/python
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir dist .

site: .venv/dev.stamp
	$(BIN)/mkdocs build --strict --quiet

$(BIN)/python:
	$(PYTHON) -m venv .venv

.venv/base.stamp: $(GROUND) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

.venv/dev.stamp: $(GROUND) | $(BIN)/python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch .venv/base.stamp $@

# Ray, half a gigabyte, which the slow tests alone need.
.venv/scale.stamp: .venv/dev.stamp
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,scale]'
	touch $@
