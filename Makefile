# make serve and make test work on a fresh machine: python3 >= 3.11 with venv and pip, and make.
PYTHON ?= python3
MODEL ?= smollm2:135m
ARGS ?=
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help install serve test test-all bench bench-report lint fixtures clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "flm needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "python3 -m venv failed; on Debian: apt install python3-venv"; exit 1; }
	@echo "Installing flm into $(VENV) (a minute or two, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/installed-test: $(VENV)/installed
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test]'
	@touch $@

$(VENV)/installed-all: $(VENV)/installed-test
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[test,all,bench]'
	@touch $@

install: $(VENV)/installed  ## make .venv with flm in it

serve: install  ## serve MODEL (default smollm2:135m) with ARGS, e.g. make serve ARGS='--port 8080'
	@$(BIN)/flm serve $(MODEL) $(ARGS)

test: $(VENV)/installed-test  ## what CI runs; no network beyond the package index
	@$(BIN)/python -m pytest -m 'not slow' $(ARGS)

test-all: $(VENV)/installed-all  ## the slow and heavy tests too: fuzzing, live clients, peers
	@command -v npm >/dev/null || echo "No node and npm here: the JavaScript clients are left out."
	@$(BIN)/python -m pytest $(ARGS)

bench: $(VENV)/installed-all  ## side by side with llama.cpp; appends rows to bench/results
	@$(BIN)/python -m bench.chat $(ARGS)
	@$(BIN)/python -m bench.overhead
	@$(BIN)/python -m bench.prefix_costs
	@$(BIN)/python -m bench.agents --model smollm2
	@$(BIN)/python -m bench.agents --model qwen35
	@$(BIN)/python -m bench.hermes
	@$(BIN)/python -m bench.families
	@$(BIN)/python -m bench.pictures
	@$(BIN)/python -m bench.grammar
	@$(BIN)/python -m bench.comply
	@$(BIN)/python -m bench.readme

bench-report: bench  ## measure, then write docs/benchmarks.md and its pictures
	@$(BIN)/python -m bench.report

lint: $(VENV)/installed-test  ## ruff and mypy --strict
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

fixtures: $(VENV)/installed-test  ## compute the expected logits again (installs torch: several GB)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[fixtures]'
	@$(BIN)/python -m tests.fixtures.make

clean:
	rm -rf $(VENV)
