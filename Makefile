## Everything runs in .venv, which the first call sets up. Linux on x86-64. Without Python 3.11 or 3.12, uv brings one.
##
VENV ?= .venv
PYTHON ?=
TORCH_INDEX ?=
RUN_DIR ?= runs/$@-$(shell date +%m%d-%H%M%S)

BIN := $(VENV)/bin
READY := $(VENV)/.ready
TORCH := $(shell sed -n 's/^torch==/torch-/p' requirements/cpu.txt)

# For two cores: some of these tests wait for time limits. Real runs would only take each other's cores. What a file shares
# is made once, and files that take long come first.
SIDE_BY_SIDE := --numprocesses=3 --dist=loadfile --no-loadscope-reorder

# Files that load torch, Ray or vLLM in the fast tests. Those take seconds to load, and then pytest needs milliseconds for
# each test to visit all their loggers: so the other files are run in a process of their own.
STACK_TESTS := adapters_trl cli_doctor cli_evaluate cli_events cli_init cli_run_watch cli_verbs config_loss_rules \
	config_score_rules data_hostile data_problems data_training docs docs_api docs_migrating gpu_* model_code \
	platforms_disk platforms_gpu reporting_redaction reward_arithmetic reward_function reward_weighted_sum rollout_* \
	trainer_* weights_*
STACK := tests/contract $(wildcard $(STACK_TESTS:%=tests/unit/test_%.py))
QUICK := -m "not e2e and not slow and not long"

.PHONY: help setup demo demo-toy test test-long check quick-light quick-stack gpu-rehearsal chaos audit lint lint-package format docs arena-docs site build clean

# A line that starts with two number signs is shown as it is; what follows them beside a target is its line.
help: ## show this text
	@awk -F ':.*## ' '/^##/ { sub(/^## ?/, ""); print } /^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## set up .venv and nothing more
	@echo "$(VENV) is ready. To use its commands in this shell: . $(VENV)/bin/activate"

# Somebody may have put another build of torch in the place of the pinned one: then the set-up runs again. pip and uv write
# INSTALLER when all files of a package are there.
ifeq ($(wildcard $(VENV)/lib/python3.1*/site-packages/$(TORCH).dist-info/INSTALLER),)
.PHONY: $(READY)
endif

$(READY): requirements/cpu.txt pyproject.toml
	@PYTHON="$(PYTHON)" TORCH_INDEX="$(TORCH_INDEX)" requirements/setup.sh $(VENV)
	@touch $(READY)
	@$(if $(filter setup,$(MAKECMDGOALS)),:,echo "To use its commands in this shell: . $(VENV)/bin/activate")

demo: $(READY) ## train SmolLM2-135M with Reinforce-Ada on this CPU and show that it learned
	@$(BIN)/openrlhf-ada demo --run-dir $(RUN_DIR)

demo-toy: $(READY) ## the same with a toy model, in under two minutes
	@$(BIN)/openrlhf-ada demo --toy --run-dir $(RUN_DIR)

test: $(READY) lint ## lint, and every test but the long ones, with the real Ray, DeepSpeed and vLLM
	@$(BIN)/pytest -q $(SIDE_BY_SIDE) -m "not long" tests/contract tests/benchmarks tests/unit
	@$(BIN)/pytest -q --numprocesses=2 --dist=loadfile -m "not long" tests/e2e tests/gpu

test-long: $(READY) ## the long tests, which `make test` leaves out: faults of nodes, every method, the notebook
	@$(BIN)/pytest -q $(SIDE_BY_SIDE) -m long tests/unit tests/benchmarks
	@$(BIN)/pytest -q --numprocesses=2 --dist=loadfile -m long tests/e2e

check: $(READY) ## lint, and the fast unit and contract tests: about a minute on two cores
	@$(MAKE) --no-print-directory --jobs=3 --output-sync=target lint-package quick-light quick-stack

quick-light: $(READY) ## the fast tests of `make check` that load neither torch nor Ray
	@LOADS_NO_STACK=1 $(BIN)/pytest -q $(QUICK) $(filter-out $(STACK),$(wildcard tests/unit/test_*.py))

quick-stack: $(READY) ## its other fast tests
	@$(BIN)/pytest -q $(QUICK) $(STACK)

gpu-rehearsal: $(READY) ## what a CPU can show of the paths on GPUs (docs/gpu.md): up to half an hour
	@$(BIN)/pytest -q $(SIDE_BY_SIDE) -m "rehearsal and not e2e" tests/unit tests/contract
	@$(BIN)/pytest -q --numprocesses=2 --dist=loadfile -m "rehearsal and e2e" tests/e2e
	@echo "On a machine with a GPU: tests/gpu/first_run.sh"

chaos: $(READY) ## faults in real runs, up to two hours; what has been tried is not repeated (docs/reliability.md)
	@$(BIN)/python tests/chaos/chaos.py

audit: ## known weaknesses of the pinned packages; asks PyPI, with pipx
	@requirements/audit.sh

lint: lint-package ## formatting, spelling, layers, sizes, types, shell scripts and Dockerfiles
	@$(BIN)/pyright --warnings benchmarks/arena
	@$(BIN)/hadolint dockerfile/Dockerfile dockerfile/Dockerfile.cpu && $(BIN)/shellcheck dockerfile/*.sh requirements/*.sh tests/gpu/*.sh .github/*.sh
	@$(BIN)/shellcheck --external-sources --source-path=SCRIPTDIR examples/scripts/*.s*

lint-package: $(READY) ## the part of it that `make check` has
	@$(BIN)/ruff format --check -q . && $(BIN)/ruff check -q . && $(BIN)/codespell
	@said=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$said"; exit 1; }
	@$(BIN)/pyright --warnings openrlhf_ada
	@find openrlhf_ada -name '*.py' -exec wc -l {} + | awk '$$1 > 400 && $$2 != "total" { print $$2 " has " $$1 " lines: is it one thing?" }'

format: $(READY) ## format the code and fix what ruff can fix
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

docs: $(READY) ## write docs/flags.md anew, from the parsers, and the measured tables of other pages
	@$(BIN)/python benchmarks/flag_reference.py
	@$(BIN)/python benchmarks/result_tables.py

arena-docs: $(READY) ## write RESULTS.md and GRID.md of benchmarks/arena, and the table of docs/arena.md, anew
	@$(BIN)/python -m benchmarks.arena page

site: $(READY) ## the documentation as a site: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html. With search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory build/site"

build: $(READY) ## source archive and wheel in dist/, checked as the package index checks them
	@rm -rf dist && $(BIN)/python -m build --no-isolation
	@$(BIN)/python -m venv build/twine && build/twine/bin/pip install -qq --disable-pip-version-check twine==7.0.0
	@build/twine/bin/twine check --strict dist/*

clean: ## remove what was built or cached, but not .venv
	rm -rf build dist *.egg-info .cache .pytest_cache .ruff_cache

##
## Variables: PYTHON (an interpreter, 3.11 or 3.12), VENV, RUN_DIR (of the demos), and TORCH_INDEX: the package index to take
## torch's CPU build from. Without it, pip's own configuration is tried, then PyTorch's index.
