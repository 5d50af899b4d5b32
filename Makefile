# Everything a person needs, on a machine that has Python, make and a package index.
#   make demo    set up, then train a small model with a planted bottleneck and diagnose it
#   make test    set up, then run the tests
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# A further index to look for torch in, such as PyTorch's own for the CPU: make demo TORCH_INDEX=URL
TORCH_INDEX ?=
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
# Two stamps: the demo needs torch and Stepscope, and not the tools of its development.
RUNTIME := $(VENV)/.runtime
STAMP := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-ci test-all lint check-js format check matrix site pictures clean

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## Make the environment in .venv (torch included)

$(RUNTIME): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): stepscope with torch (about a minute)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# torch is pinned: a bare requirement could pull another build, with gigabytes of libraries.
	@# What is imported is compiled then: all of torch at once would take half of the time.
	@$(PIP) --no-compile $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) torch==2.13.0 --editable .
	@touch $@

$(STAMP): $(RUNTIME)
	@echo "Adding the development tools to $(VENV)"
	@$(PIP) --editable '.[torch,dev]'
	@touch $@

demo: $(RUNTIME)  ## Train a small model with a slow input pipeline, diagnose it, fix it, measure again
	@$(BIN)/stepscope demo

test: setup  ## Run the tests that take seconds, in a few minutes
	$(BIN)/python -m pytest -n auto --dist worksteal

test-ci: setup  ## Run those and the long ones, such as 210 simulated trainings
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not slow and not gpu'

test-all: setup  ## Run all tests, the slow ones and the fuzzers included
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'not gpu'

lint: setup  ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check-js:  ## Check the types of the viewer's modules (needs node and npm)
	@if ! command -v npm >/dev/null; then echo "check-js: skipped, npm is not installed"; \
	else test -x node_modules/.bin/tsc || npm install --no-audit --no-fund --no-package-lock --silent; \
	node_modules/.bin/tsc --project jsconfig.json && echo "check-js: no errors"; fi

format: setup  ## Put the code into the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: lint check-js test-ci  ## What CI runs

matrix:  ## Install on each Python at hand, with the newest and lowest dependencies, and try it
	$(PYTHON) scripts/install_matrix.py

site: setup  ## Build the site of the documentation in build/site, with strict links
	@$(PIP) --editable '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

pictures: setup  ## Take the pictures of README and docs (needs Chromium)
	$(BIN)/python scripts/screenshots.py build/pictures --widths 1280 --keep
	$(BIN)/python scripts/badges.py

clean:  ## Remove the environment and what tools left behind
	rm -rf $(VENV) node_modules .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache build dist
