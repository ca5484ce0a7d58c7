# Roundhouse: `make up` runs it, `make test` tests it. Needs Debian 12 (or any Linux) with python3 >= 3.11, venv and make.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
# Tests start several hundred programs: all of them would compile every module anew.
unexport PYTHONDONTWRITEBYTECODE
.ONESHELL:
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# One process more than there are processors: tests of whole programs wait as much as they work.
WORKERS ?= $(shell expr $$(nproc) + 1)
# Said on the command line alone: a PORT of the environment is some other program's.
PORT_OPTION = $(if $(filter command,$(origin PORT)),--port $(PORT))
# The folders of models that `up` is told, by --models in ARGS or by the environment, with blanks between them.
COMMA := ,
after_models = $(if $(filter --models,$(firstword $(1))),$(word 2,$(1)),$(if $(1),$(call after_models,$(wordlist 2,$(words $(1)),$(1)))))
MODEL_FOLDERS = $(subst $(COMMA), ,$(or $(call after_models,$(subst --models=,--models ,$(ARGS))),$(ROUNDHOUSE_MODELS),models))
# In another folder nobody would find it.
DEMO_MODEL = $(if $(filter $(abspath models),$(abspath $(MODEL_FOLDERS))),models/clockwork.gguf)
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help up install install-launcher page images test quick engines check format derive dashboards pictures trace bench campaign lock audit sbom clean

help: ## This list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 26

up: $(VENV)/.installed $(DEMO_MODEL) ## Serve desired-state/ on http://127.0.0.1:8080 (PORT=9000: there); Ctrl-C stops everything.
	@web/build --if-served || true # which says why, and that all else works without the page
	exec $(BIN)/roundhouse up --runtime process $(PORT_OPTION) $(ARGS)

install: $(VENV)/.installed ## The environment alone, in .venv.

install-launcher: $(VENV)/.installed ## `roundhouse` in ~/.local/bin, for this folder's desired-state/, models/ and state/.
	@launcher="$$HOME/.local/bin/roundhouse"
	mark="# Written by make install-launcher."
	if { [ -e "$$launcher" ] || [ -L "$$launcher" ]; } && ! grep -qsF "$$mark" "$$launcher"; then
	  echo "roundhouse: $$launcher is something else, and stays; remove it first" >&2
	  exit 1
	fi
	mkdir -p "$${launcher%/*}"
	{
	  echo '#!/usr/bin/env bash'
	  echo "$$mark"
	  for name in desired:desired-state models:models state:state; do
	    variable=ROUNDHOUSE_$${name%%:*}
	    printf 'export %s="$${%s:-"%q"}"\n' "$${variable^^}" "$${variable^^}" "$$PWD/$${name#*:}"
	  done
	  printf 'exec %q "$$@"\n' "$$PWD/$(BIN)/roundhouse"
	} >"$$launcher.new"
	chmod 755 "$$launcher.new"
	mv "$$launcher.new" "$$launcher"
	echo "roundhouse: $$launcher runs $(BIN)/roundhouse of $$PWD"
	case ":$$PATH:" in
	*":$${launcher%/*}:"*) ;;
	*) echo "roundhouse: your PATH lacks $${launcher%/*}: add export PATH=\"\$$HOME/.local/bin:\$$PATH\" to ~/.profile" ;;
	esac

page: $(VENV)/.installed ## Build the page of web/ that the gateway serves at /; nothing where nothing changed (1 min, 200 MB to download).
	@exec web/build $(ARGS)

images: ## The four container images; ENGINES="exllamav3 vllm" builds the workers of these engines instead.
	@images/build $(if $(ENGINES),--engines "$(ENGINES)") $(ARGS)

test: $(VENV)/.installed-dev models/clockwork.gguf ## Everything that this machine can run; ARGS are pytest's.
	@exec $(PYTEST) $(ARGS)

quick: $(VENV)/.installed-dev ## The tests without engines and without what is slow, each property tried five times.
	@export ROUNDHOUSE_TEST_QUICK=1
	exec $(PYTEST) -m "not engines and not slow" tests/unit tests/properties $(ARGS)

engines: ## What tests need beyond Python packages, built once: Docker Engine, llama.cpp, vLLM, ... (as root, 20 min).
	@.ci/prepare

check: $(VENV)/.installed-dev ## Lint, types, imports.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## Format the sources.
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

derive: $(VENV)/.installed-dev ## Write anew what follows from declarations: tables of docs/models.md, JSON Schema, goldens.
	@$(BIN)/python -m tests.support.doc_tables --write
	@$(BIN)/roundhouse schema --write --desired desired-state
	@$(BIN)/python -m tests.support.goldens --write

dashboards: $(VENV)/.installed-dev ## Write grafana/dashboards from grafana/generator.
	@$(BIN)/python -m grafana.generator

pictures: $(VENV)/.installed-dev models/clockwork.gguf ## Draw docs/dashboards and docs/page from a running Roundhouse, its real Prometheus and Chromium (4 min).
	@$(BIN)/python -m tests.support.dashboard_pictures
	@$(BIN)/python -m tests.support.page_pictures

trace: $(VENV)/.installed-dev ## The files and functions of one way, in order: REQUEST=chat, edit, load or document.
	@exec $(BIN)/python -m tests.support.trace $(REQUEST)

bench: $(VENV)/.installed-dev models/clockwork.gguf ## Side-by-side benchmarks: medians and ratios.
	@exec $(BIN)/python -m tests.bench $(ARGS)

campaign: $(VENV)/.installed-dev models/clockwork.gguf ## One campaign in full, e.g. ARGS="plan --seed 1"; its page goes to docs/campaigns/.
	@exec $(BIN)/python -m tests.campaigns $(ARGS)

lock: $(VENV)/.installed-dev ## Resolve the locked dependencies anew.
	@$(PIP) install uv
	@for part in gateway controller worker all dev cluster; do \
	  $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	    --no-header --no-annotate --upgrade --extra $$part $$(test $$part != gateway || echo --extra retrieval) \
	    $$(test $$part != controller || echo --extra transfers) \
	    $$(test $$part != cluster || echo --extra all) \
	    pyproject.toml -o requirements/$$part.txt; \
	done
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	  --no-header --no-annotate --upgrade --group page -o requirements/page.txt

audit: $(VENV)/.installed-dev ## Known vulnerabilities of what is locked, by pip-audit: 1 if there are any, 3 if nobody can be asked.
	@exec $(BIN)/python -m tests.supply_chain.audit

sbom: $(VENV)/.installed-dev ## What the images of `make images` hold, as CycloneDX, in sbom/.
	@exec $(BIN)/python -m tests.supply_chain.sbom $(ARGS)

clean: ## Remove the environment, the built page and caches; models and state stay.
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache web/node_modules web/src/api/openapi.d.ts gateway/page/built

$(VENV)/.made:
	@command -v $(PYTHON) >/dev/null || { echo "roundhouse: $(PYTHON) is missing; install it: apt-get install python3 python3-venv" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "roundhouse: $(PYTHON) is older than 3.11; name a newer one: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { rm -rf $(VENV); echo "roundhouse: $(PYTHON) cannot make a virtual environment; install it: apt-get install python3-venv" >&2; exit 1; }
	@touch $@

# Reads pip's own words: on a terminal one line that changes, elsewhere a line now and then.
define show_progress
	show_progress() {
	  local count=0 word rest
	  while read -r word rest; do
	    case $$word in
	    Collecting)
	      count=$$((count + 1))
	      if [ -t 1 ]; then printf '\r\033[Kroundhouse: %d packages found: %s' "$$count" "$${rest%% *}"
	      elif [ $$((count % 20)) = 0 ]; then echo "roundhouse: $$count packages found"; fi ;;
	    Installing)
	      if [ -t 1 ]; then printf '\r\033[K'; fi
	      echo "roundhouse: unpacking $$count packages" ;;
	    esac
	  done
	}
endef

define install_part
	$(show_progress)
	echo "roundhouse: installing into $(VENV) ($(1)); it takes one to five minutes"
	$(BIN)/python -m pip --disable-pip-version-check install --require-hashes -r requirements/$(1).txt 2>$(VENV)/install.log | show_progress \
	  && $(PIP) install --no-deps --editable . 2>>$(VENV)/install.log \
	  || { echo "roundhouse: the installation failed: $$(grep -m1 -E '^ERROR|rror' $(VENV)/install.log || tail -n1 $(VENV)/install.log) (all of it: $(VENV)/install.log)" >&2; exit 1; }
	touch $@
endef

$(VENV)/.installed: $(VENV)/.made requirements/all.txt pyproject.toml
	@$(call install_part,all)

$(VENV)/.installed-dev: $(VENV)/.made requirements/dev.txt pyproject.toml
	@$(call install_part,dev)
	touch $(VENV)/.installed

models/clockwork.gguf: | $(VENV)/.installed
	@mkdir -p models
	@$(BIN)/python -m worker.clockwork $@
