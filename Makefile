# Everything a developer or a user types. `make help` lists the targets.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
STAMP := .venv/.installed
CHROMIUM ?= /usr/bin/chromium
GPU_PYTHON ?= python3 # of the machine with the GPU, which has torch; no .venv is needed there
export PYTHON CHROMIUM
unexport PYTHONDONTWRITEBYTECODE # where it is set, each of thousands of processes would compile its modules anew

.DEFAULT_GOAL := help
.PHONY: help setup run test check house docs reference accuracy first-sight bench gpu-hour chaos fuzz launchers corpus wheels clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv with the product and the development tools

$(STAMP): pyproject.toml constraints.txt
	@.ci/setup
	@touch $(STAMP)

run: $(STAMP) ## the main job: start the embedded service, search the example, write launch files to out/
	@$(BIN)/meshwright demo examples/llama-3.1-70b-128xh100.json

test: $(STAMP) ## the tests of every day, with their own PostgreSQL and Redis (ARGS="--of FILE": who executes a file); WITH=torch, WITH=browser: those that need more packages
ifdef WITH
	@OMP_NUM_THREADS=1 MESHWRIGHT_TEST_TORCH=1 MESHWRIGHT_TEST_BROWSER=1 .ci/environment $(WITH) python -m pytest tests/$(WITH) $(ARGS)
else ifneq ($(filter --of,$(ARGS)),)
	@.ci/environment mutants python -m benchmarks.tests_of $(ARGS)
else
	@$(BIN)/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder --durations 10
endif

check: $(STAMP) ## rules and format (ruff), types (mypy --strict), layering (import-linter), migrations (squawk)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m meshwright.service.db.migrations | $(BIN)/squawk --stdin-filepath migrations.sql

house: $(STAMP) ## the shape of the product in figures (ARGS=--list)
	@$(BIN)/python -m benchmarks.house $(ARGS)

docs: ## the documentation as a site in out/site; a broken link fails
	@NO_MKDOCS_2_WARNING=1 .ci/environment docs mkdocs build --strict
	@! grep -rnoE 'src="https?://[^"]+"' out/site --include='*.html' || { echo "error: pages load from other hosts"; exit 1; }
	@echo "out/site/index.html"

reference: $(STAMP) ## the pages of docs/ that are made from code
	@$(BIN)/python -m meshwright.service.api > docs/openapi.json
	@$(BIN)/python -m meshwright.service.settings > docs/settings.md
	@$(BIN)/python -m meshwright.service.api.client_records > client/meshwright_client/records.py
	@$(BIN)/python -m benchmarks.reference

accuracy: $(STAMP) ## predict every measured run and write docs/accuracy.md (ARGS=--quick: the gates alone, writes nothing)
	@$(BIN)/python -m benchmarks.accuracy $(ARGS)

first-sight: $(STAMP) ## freeze the predictions of a table of runs before you look at what was measured (ARGS=FILE; --score)
	@$(BIN)/python -m benchmarks.first_sight $(ARGS)

bench: $(STAMP) ## a benchmark by its name (ARGS="search --write"); without a name their list
	@$(BIN)/python -m benchmarks $(ARGS)

gpu-hour: ## one GPU, at most 24 minutes: profile, predict, train, compare (ARGS=--pack, --rehearse, --page)
ifneq ($(filter --rehearse,$(ARGS)),)
	@PYTHONPATH=src .ci/environment torch python -m benchmarks.gpu_hour $(ARGS)
else ifneq ($(filter --page --keep,$(ARGS)),)
	@PYTHONPATH=src $(BIN)/python -m benchmarks.gpu_hour $(ARGS)
else
	@PYTHONPATH=src $(GPU_PYTHON) -m benchmarks.gpu_hour $(ARGS)
endif

chaos: $(STAMP) ## kill, freeze, crash, flush, upgrade and roll back under load, about 15 minutes (ARGS=--short: two)
	@$(BIN)/python -m tests.chaos --json out/chaos.json $(ARGS)

fuzz: $(STAMP) ## over 10 000 hostile requests, at least twelve times the draws of make test, all golden files, all slow tests and all types with torch (DRAWS=34: more; ARGS=--quick: few requests)
	@.ci/environment fuzz
	@$(BIN)/python -m benchmarks.fuzz_api $(ARGS)
ifneq ($(ARGS),--quick)
	@MESHWRIGHT_TEST_DRAWS=$(or $(DRAWS),12) $(BIN)/python -m pytest tests/accuracy tests/golden tests/property $$(grep -rl "tests.draws import" tests --include=*.py --exclude-dir=torch --exclude-dir=browser) --numprocesses auto --dist loadfile --timeout 3600
	@MESHWRIGHT_TEST_DRAWS=$(or $(DRAWS),12) OMP_NUM_THREADS=1 MESHWRIGHT_TEST_TORCH=1 .ci/environment torch python -m pytest $$(grep -rl "tests.draws import" tests/torch --include=*.py) --timeout 3600
endif

launchers: $(STAMP) ## exported plans before the launchers' own parsers (ARGS="--plans 20 --only deepspeed"; --refusals 4: what we refuse; --quick: as CI does)
	@.ci/uv $(BIN)/python -m tests.launchers $(ARGS)

corpus: $(STAMP) ## launch files of public repositories, read and counted; runs none (ARGS="--files DIR --list")
	@$(BIN)/python -m benchmarks.corpus $(ARGS)

wheels: $(STAMP) ## build the wheels of product and client into out/wheels, install each on its own and use it
	@.ci/wheels

clean: ## remove the environments, caches and results
	rm -rf .venv .venv-* out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info src/*.egg-info client/build client/*.egg-info
