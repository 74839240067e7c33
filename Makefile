# Two commands: `make play` opens the playground, `make test` runs everything. Both do all the set-up they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := src/specscope/__init__.py engine traces app tests

.PHONY: play test thorough engines lint style types format unit model package browser bench clean
.DEFAULT_GOAL := play

# The first start downloads a chat model (93 MB; Ctrl-C skips it). Later starts do not try again.
play: $(VENV)/.app  ## set up and open the playground (ARGS="--port 8000")
	@first=$$(test -e $(VENV)/.played || echo --get-model); touch $(VENV)/.played; exec $(BIN)/specscope play $$first $(ARGS)

# Debian's browser is installed beside Python's packages. The type checker has one thread: it runs beside the tests.
test:  ## set up (browser included), lint, type-check, run all tests but the long ones
	@$(MAKE) --no-print-directory -j 2 $(VENV)/.dev package
	@$(MAKE) --no-print-directory style
	@$(MAKE) --no-print-directory -j 2 types unit

lint: style types

style: $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)

types: $(VENV)/.dev
	$(BIN)/pyright

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# Three files at a time, in order: the browser's, which take longest, are among the first. Two left over a quarter
# of two cores idle: many tests wait for processes and pages. Bytecode is kept: the tests start some hundred
# processes.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -q -n 3 --dist loadfile --no-loadscope-reorder --max-worker-restart 0

unit: $(VENV)/.dev browser
	$(PYTEST) -m "not gpu and not engines and not thorough"

thorough: $(VENV)/.dev browser model  ## the tests that `make test` leaves out (THOROUGH in tests/conftest.py)
	$(PYTEST) -m "thorough and not gpu and not engines"

# Gigabytes: vLLM brings its own torch.
engines: $(VENV)/.dev  ## set up llama.cpp and vLLM in .engines, and test against the real servers
	PYTHON=$(PYTHON) sh tests/engines/setup.sh $(CURDIR)/.engines
	SPECSCOPE_ENGINES=$(CURDIR)/.engines $(BIN)/pytest -q -n 0 -m engines tests/engines

# Without it, the tests on a real model are skipped and say so.
model: $(VENV)/.dev
	-@$(BIN)/specscope models get smollm2 --patience 20

# After the environment, whose making may need apt too.
package: | $(VENV)/bin/python
	@sh tests/browser/install.sh

browser: $(VENV)/.dev
	@sh tests/browser/install.sh $(BIN)

bench: $(VENV)/.app
	$(BIN)/specscope bench $(ARGS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); [ "$$(id -u)" = 0 ] && apt-get update -q && apt-get install -yq python3-venv && $(PYTHON) -m venv $(VENV); }

# Python compiles a module when it is first imported; most of these packages' modules never are.
# Without a network, pip would try again for two minutes.
INSTALL := PIP_RETRIES=1 $(BIN)/python -m pip install --disable-pip-version-check --progress-bar off --no-compile
HINT := { echo "specscope: pip cannot install the packages; check the network, or set PIP_INDEX_URL to a package index that answers" >&2; exit 1; }

$(VENV)/.app: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) -e '.[app]' || $(HINT)
	@touch $@

$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	$(INSTALL) -e '.[dev]' || $(HINT)
	@touch $@ $(VENV)/.app

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis *.egg-info build
