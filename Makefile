# Set-up and checks of tcpdelay. `make help` lists the targets.

PYTHON ?= python3
LOCK_FLAGS ?=

COMMA := ,
EMPTY :=
SPACE := $(EMPTY) $(EMPTY)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/stamps
# uv installs the locked packages in a fraction of pip's time; it takes mirrors, local wheels and patience from pip's
# settings in the environment.
UV := $(if $(PIP_INDEX_URL),UV_DEFAULT_INDEX=$(PIP_INDEX_URL)) \
	$(if $(PIP_FIND_LINKS),UV_FIND_LINKS=$(subst $(SPACE),$(COMMA),$(PIP_FIND_LINKS))) \
	$(if $(PIP_DEFAULT_TIMEOUT),UV_HTTP_TIMEOUT=$(PIP_DEFAULT_TIMEOUT)) $(BIN)/uv
INSTALL := $(UV) pip install --quiet --python $(BIN)/python
LOCK := $(UV) pip compile --quiet --universal --generate-hashes --no-emit-index-url --no-emit-find-links \
	--only-binary :all: --custom-compile-command "make lock" $(LOCK_FLAGS)

# `tcpdelay report --ping examples/ping.txt --app voip`, and the same with `-o report.html`, in one process.
define REPORTS
from tcpdelay.cli.program import main
command = "report --ping examples/ping.txt --app voip"
raise SystemExit(main(command.split()) or main(f"{command} -o report.html --format html".split()))
endef
export REPORTS

NOTEBOOKS := $(wildcard notebooks/*.ipynb)
BENCHMARKS := $(wildcard benchmarks/bench_*.py)
# As in tcpdelay/compiling/source_digest.py.
KERNEL_SOURCES := $(shell find $(addprefix tcpdelay/,compiling sim chain accuracy models quality scenario/jitter.py \
	delays.py budget.py) -name '*.py')
KERNELS := $(STAMPS)/kernels.json

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help report testbed lint kernels wheel test docs notebooks notebooks-store bench lock clean

help: ## list the targets
	@echo "Usage: make TARGET [PYTHON=python3.12]"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 19

report: $(STAMPS)/package ## set up .venv; print a guideline report from examples/ping.txt, write it to report.html
	@$(BIN)/python -c "$$REPORTS"
	@echo "The same report for a browser: $(CURDIR)/report.html"

testbed: $(STAMPS)/package ## build the guest kernel with virtual time at 250 Hz, and say what works here
	@$(BIN)/tcpdelay testbed build-kernel --hz 250
	@$(BIN)/tcpdelay testbed check

lint: $(STAMPS)/dev ## lint, and check types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

kernels: $(KERNELS) ## compile the kernels into the package, and record for which types; the tests check that

# Two processes that run the tests would both compile every kernel. Checkout and wheel use what is compiled here.
$(KERNELS): tests/kernel_runs.py $(KERNEL_SOURCES) $(STAMPS)/package
	@echo "Compiling the kernels ..."
	@$(BIN)/python tests/kernel_runs.py store >$@

wheel: $(KERNELS) ## build the wheel for this Python and system, with the compiled kernels, into dist/
	@$(BIN)/python -m hatchling build -t wheel

test: lint $(KERNELS) ## lint, check types and run the tests; --jobs=2 compiles the kernels meanwhile
	$(BIN)/python -m pytest -n logical --dist loadfile

docs: $(STAMPS)/dev ## build the documentation into docs/_build/html
	$(BIN)/sphinx-build -q -W --keep-going -j auto -b html docs docs/_build/html
	@echo "The documentation: $(CURDIR)/docs/_build/html/index.html"

notebooks: $(STAMPS)/dev ## execute every notebook, and compare its outputs with the stored ones
	$(BIN)/python tests/notebook_outputs.py $(NOTEBOOKS)

notebooks-store: $(STAMPS)/dev ## execute every notebook, and store its outputs
	$(BIN)/python tests/notebook_outputs.py --store $(NOTEBOOKS)

bench: $(STAMPS)/bench ## run the benchmarks
ifeq ($(BENCHMARKS),)
	@echo "No benchmarks to run."
else
	$(BIN)/python -m pytest tests/test_storm.py
	$(BIN)/python -m pytest --benchmark-only $(BENCHMARKS)
endif

lock: $(STAMPS)/dev ## write locks/ anew from pyproject.toml; LOCK_FLAGS=--upgrade takes the newest versions
	$(LOCK) pyproject.toml --group build --extra cluster --extra dev --extra docs --extra notebooks --extra quic \
	  --extra test --extra testbed -o locks/dev.lock
	$(LOCK) pyproject.toml --group build --extra testbed --constraints locks/dev.lock -o locks/runtime.lock
	$(LOCK) pyproject.toml --group build --extra bench --extra test --extra testbed \
	  --constraints locks/dev.lock -o locks/bench.lock
	echo uv | $(LOCK) - --constraints locks/dev.lock -o locks/uv.lock

clean: ## remove .venv and everything that make wrote
	rm -rf $(VENV) dist tcpdelay/compiled_kernels docs/_build docs/generated report.html .mypy_cache .pytest_cache .ruff_cache .benchmarks

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "tcpdelay needs Python 3.11 or later, but $(PYTHON) is" \
	    "$$($(PYTHON) -c 'import platform; print("Python " + platform.python_version())' 2>/dev/null || echo missing);" \
	    "name another: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  package=$$($(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'); \
	  if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
	    echo "$(PYTHON) cannot make virtual environments yet; run: sudo apt-get install -y $$package" >&2; exit 1; fi; \
	  echo "Installing $$package ..."; \
	  export DEBIAN_FRONTEND=noninteractive DEBCONF_NOWARNINGS=yes; \
	  apt-get -qq update </dev/null && apt-get -qq install -y $$package </dev/null >/dev/null; }
	@echo "Creating $(VENV) with $$($(PYTHON) --version) ..."
	@$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/uv: locks/uv.lock | $(STAMPS)/venv
	@$(BIN)/python -m pip --disable-pip-version-check install --quiet --no-compile --require-hashes -r $<
	@touch $@

$(STAMPS)/runtime: locks/runtime.lock $(STAMPS)/uv
	@echo "Installing the locked dependencies ..."
	@$(INSTALL) --require-hashes -r $<
	@touch $@

$(STAMPS)/package: pyproject.toml $(STAMPS)/runtime
	@$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMPS)/dev: locks/dev.lock $(STAMPS)/package
	@echo "Installing the locked tools for tests, docs and notebooks ..."
	@$(INSTALL) --require-hashes -r $<
	@touch $@

$(STAMPS)/bench: locks/bench.lock $(STAMPS)/package
	@echo "Installing the locked tools for benchmarks ..."
	@$(INSTALL) --require-hashes -r $<
	@touch $@
