# Everything a developer or a user types. `make help` lists the targets.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
FUZZ := .venv-fuzz/bin/schemathesis

.PHONY: help setup run test lint types layering check accuracy accuracy-short ablation bench-cost bench-peers bench-search operators collectives fuzz-api fuzz-api-short test-torch torch-environment cpu-training test-launchers clean chaos chaos-short bench-service bench-cancel bench-scaling mutants reliability reliability-faults client test-browser screenshots docs reference newcomer house wheel

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-18s %s\n", $$1, $$2}'

setup: $(STAMP) ## create .venv with the product and the development tools

$(STAMP): pyproject.toml constraints.txt
	@echo "setting up $(VENV) (first time only; a minute or two)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: Python 3.11 or newer is needed; set PYTHON=..."; exit 2; }
	@PYTHONWARNINGS=ignore $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

run: $(STAMP) ## the main job: start the embedded service, search the example, write launch files to out/
	@$(BIN)/meshwright demo

test: $(STAMP) ## all tests, a file at a time on each core; they start their own PostgreSQL and Redis
	@$(BIN)/python -m pytest -m "not alone" --numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder
	@$(BIN)/python -m pytest -m alone # what is promised in seconds, with the machine to itself

cpu-training: torch-environment ## plan, export, train on this CPU, send back, predict again; into docs/accuracy.md
	@.venv-torch/bin/python examples/cpu_training/closed_loop.py --write

test-torch: torch-environment ## what needs torch: meshwright profile, measured on this machine's CPU (makes .venv-torch)
	@OMP_NUM_THREADS=2 MESHWRIGHT_TEST_TORCH=1 .venv-torch/bin/python -m pytest tests/torch

torch-environment:
	@test -x .venv-torch/bin/python || $(PYTHON) -m venv .venv-torch
	@PYTHONWARNINGS=ignore .venv-torch/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt 'torch==2.13.0' --editable '.[dev]'

BROWSER := .venv-browser/.installed
CHROMIUM ?= /usr/bin/chromium

test-browser: $(BROWSER) ## the live page and the report in the system's Chromium (makes .venv-browser; CHROMIUM=path)
	@CHROMIUM=$(CHROMIUM) MESHWRIGHT_TEST_BROWSER=1 .venv-browser/bin/python -m pytest tests/browser

screenshots: $(BROWSER) ## pictures of the live page into docs/images, its weight and its speed into docs/live-page.md
	@CHROMIUM=$(CHROMIUM) .venv-browser/bin/python -m tests.browser

$(BROWSER): pyproject.toml constraints.txt
	@test -x $(CHROMIUM) || { echo "error: no Chromium at $(CHROMIUM): apt-get install chromium, or set CHROMIUM=path"; exit 2; }
	@test -x .venv-browser/bin/python || $(PYTHON) -m venv .venv-browser
	@PYTHONWARNINGS=ignore .venv-browser/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	    'playwright==1.65.2' 'axe-playwright-python==0.1.8' --editable '.[dev]'
	@touch $(BROWSER)

test-launchers: $(STAMP) ## exported plans before the launchers' own parsers (ARGS="--plans 20 --only deepspeed")
	@$(BIN)/python -m tests.launchers $(ARGS)

client: $(STAMP) ## build the client's wheel into out/client, install it on its own and look at it
	@rm -rf out/client
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir out/client ./client
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target out/client/installed out/client/*.whl
	@cd out/client && PYTHONPATH=installed ../../$(BIN)/python -c 'from importlib import resources; from meshwright_client.client import Client; Client("http://127.0.0.1:8420").close(); assert resources.files("meshwright_client").joinpath("py.typed").is_file()'
	@ls out/client/*.whl

wheel: $(STAMP) ## build the product's wheel into out/wheel, install it on its own, plan and run the demo beside it
	@rm -rf out/wheel build
	@$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir out/wheel .
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-index --no-deps --target out/wheel/installed out/wheel/*.whl
	@cd out/wheel && PYTHONPATH=installed ../../$(BIN)/python -c 'import meshwright; assert "/out/wheel/installed/" in meshwright.__file__, meshwright.__file__'
	@cd out/wheel && PYTHONPATH=installed ../../$(BIN)/python -m meshwright plan --model llama-3.1-8b --cluster dgx-h100 --num-nodes 1 --global-batch-size 64 --seq-length 8192 --json > plan.json
	@cd out/wheel && PYTHONPATH=installed ../../$(BIN)/python -m meshwright demo --out run > demo.txt
	@ls out/wheel/*.whl

lint: $(STAMP) ## ruff: rules and format
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check

types: $(STAMP) ## mypy --strict
	@$(BIN)/mypy

layering: $(STAMP) ## import-linter contracts
	@$(BIN)/lint-imports

check: test lint types layering ## tests, lint, types and layering

accuracy: $(STAMP) ## predict every measured run and write docs/accuracy.md
	@$(BIN)/python benchmarks/accuracy.py

accuracy-short: $(STAMP) ## the accuracy gates, and a few clusters calibrated; writes nothing
	@$(BIN)/python benchmarks/accuracy.py --quick

ablation: $(STAMP) ## what each ingredient of the cost model buys, into docs/how-the-cost-model-works.md
	@$(BIN)/python -m benchmarks.ablation

bench-cost: $(STAMP) ## configurations priced a second, beside published tools (ARGS="--calculon PATH --write")
	@$(BIN)/python -m benchmarks.cost $(ARGS)

bench-peers: $(STAMP) ## other planners on the same questions, minutes each (ARGS="--only NAME --calculon PATH --write")
	@$(BIN)/python -m benchmarks.bench_peers $(ARGS)

bench-search: $(STAMP) ## search times and proofs, written into docs/how-the-search-works.md (ARGS=--growth: the picture)
	@$(BIN)/python -m benchmarks.search --write $(ARGS)
	@$(BIN)/python -m benchmarks.inner --write

chaos: $(STAMP) ## kill, freeze, crash and flush under load, on both databases (about 15 minutes)
	@$(BIN)/python -m tests.chaos --json out/chaos.json

bench-service: $(STAMP) ## requests and claims a second, job starts, memory, on both databases; writes docs/reliability.md
	@$(BIN)/python -m benchmarks.service_speed --write
	@$(BIN)/python -m benchmarks.service_soak --write

bench-cancel: $(STAMP) ## how soon a running job is cancelled, of 120 on each database; writes docs/reliability.md
	@$(BIN)/python -m benchmarks.service_cancels --write

bench-scaling: $(STAMP) ## jobs a minute and a sweep by 1 and 2 workers, and what 64 ask of PostgreSQL; writes docs/scaling.md
	@$(BIN)/python -m benchmarks.scaling --write

mutants: $(STAMP) ## faults in fence, lease and compare-and-set: each must turn the suite red
	@$(BIN)/python -m tests.mutants

reliability: $(STAMP) ## the long forms: 125 000 steps of the state machine, mutants, chaos; writes docs/reliability.md
	@MESHWRIGHT_TEST_LONG=1 $(BIN)/python -m pytest --timeout=3600 tests/unit/service/test_engine_machine.py
	@$(MAKE) mutants chaos
	@$(BIN)/python -m tests.reliability --measure --chaos out/chaos.json

reliability-faults: $(STAMP) ## run the tests of F1 to F24 and write what they measured into docs/reliability.md
	@$(BIN)/python -m tests.reliability --measure

chaos-short: $(STAMP) ## the same within a minute
	@$(BIN)/python -m tests.chaos --short

fuzz-api: $(STAMP) $(FUZZ) ## >= 10 000 hostile requests; any 5xx or undeclared answer fails (makes .venv-fuzz)
	@$(BIN)/python -m benchmarks.fuzz_api

fuzz-api-short: $(STAMP) $(FUZZ) ## the same with few draws, for CI
	@$(BIN)/python -m benchmarks.fuzz_api --quick

$(FUZZ): # its pytest plugin would slow every other test down: an environment of its own
	@test -x .venv-fuzz/bin/python || $(PYTHON) -m venv .venv-fuzz
	@PYTHONWARNINGS=ignore .venv-fuzz/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt 'schemathesis==4.32.5'

operators: $(STAMP) ## rebuild the operator tables: make operators WHEEL=aiconfigurator_core-0.12.0-….whl
	@$(BIN)/python -m benchmarks.catalog.aiconfigurator --wheel $(WHEEL) --out profiles/catalog/operators
	@$(BIN)/python -m meshwright.profiles.importers.simumax a100-pcie-80gb=tests/fixtures/simumax/a100_pcie.json \
	    b200-sxm-180gb=tests/fixtures/simumax/b200_bf16_ceperm.json --out profiles/catalog/operators/backward.json

collectives: $(STAMP) ## rebuild the shares of networks from SimAI's tables
	@$(BIN)/python -m benchmarks.catalog.network_shares \
	    --ring tests/unit/profiles/fixtures/importers/simai/nic_ratio.csv \
	    --all-to-all tests/unit/profiles/fixtures/importers/simai/ata_ratio.csv \
	    --out profiles/catalog/collectives/network.json

docs: ## the documentation as a site in out/site; a broken link fails (makes .venv-docs)
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@PYTHONWARNINGS=ignore .venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt mkdocs-material
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@! grep -rnoE 'src="https?://[^"]+"' out/site --include='*.html' || { echo "error: pages load from other hosts"; exit 1; }
	@echo "out/site/index.html"

newcomer: $(STAMP) ## seconds from a clone to the first ranked table; needs a package registry (ARGS=--write)
	@$(BIN)/python -m benchmarks.newcomer $(ARGS)

reference: $(STAMP) ## the pages of docs/ that are made from code
	@$(BIN)/python -m meshwright.service.api > docs/openapi.json
	@$(BIN)/python -m meshwright.service.settings > docs/settings.md
	@$(BIN)/python -m meshwright.service.reference

house: $(STAMP) ## files, heads, imports and chains of the product, and the files that one plan runs
	@$(BIN)/python -m benchmarks.house

clean: ## remove the environment, caches and results
	rm -rf $(VENV) .venv-browser .venv-torch .venv-peers .venv-fuzz .venv-docs .venv-launchers out .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info src/*.egg-info client/build client/*.egg-info
