# make demo     train a small student on this CPU and show what it learnt (ARGS="..." goes to `saki demo`)
# make test     the quick tests            (ARGS="-k bridge" goes to pytest)
# make slow     the slow tests
# make lint     ruff, mypy, import-linter
# make format   let ruff mend what it can
# make install  make .venv; runs by itself whenever pyproject.toml has changed
# make clean    remove .venv, caches and build outputs, never runs

PYTHON  ?= python3
WORKERS ?= 2
ARGS    ?=

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

# One thread a process: the models are small, and more threads than cores make every test slower.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

.DEFAULT_GOAL := help
.PHONY: help install demo test slow lint format clean

help:
	@sed -n 's/^# //p' Makefile

install: $(STAMP)

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --editable ".[dev]"
	@touch $@

demo: $(STAMP)
	$(BIN)/saki demo $(ARGS)

test: $(STAMP)
	$(PYTEST) $(ARGS)

slow: $(STAMP)
	$(PYTEST) -m slow --timeout=1800 $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src -name '*.egg-info' -prune -exec rm -rf {} +
	find src tests -name __pycache__ -prune -exec rm -rf {} +
