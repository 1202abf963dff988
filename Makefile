# What a machine with Python >= 3.11, a JDK >= 17 and make can do with this checkout. `make` alone lists it.
# Each environment is made once and again when what it installs has changed; nothing outside this directory is touched.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

# The first of these that really runs and is new enough: a version manager's stand-ins exist for versions it does not have.
PYTHON_IS_NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11))
ifndef PYTHON
PYTHON := $(shell for python in python3.14 python3.13 python3.12 python3.11 python3 python; do \
    $$python -c '$(PYTHON_IS_NEW_ENOUGH)' >/dev/null 2>&1 && { echo $$python; break; }; done)
endif

DEV := .venv
DEMO := .venv-demo
SITE := .venv-site
# Without bytecode: most files of the packages are never imported, and Python compiles the others when they are.
# PySpark has no wheel: pip makes one of 450 MB, and without compression in half the time.
INSTALL = -m pip install --quiet --no-compile --disable-pip-version-check --config-settings=--build-option=--compression=stored
SOURCES := $(wildcard pyspark_rmqlog.py store_format/*.py store_format/*/*.py rmq_spark/*.py rmq_spark/*/*.py rmq_spark/*/*/*.py)

# Tests run in two processes more than there are cores, up to 4, because many of them wait. With more, tests of
# queries and brokers miss their deadlines. Each process that meets a test with Spark starts a Spark of its own.
PROCESSES := $(shell cores=$$(nproc 2>/dev/null || echo 2); test $$cores -ge 2 && echo 4 || echo 3)
WORKERS := -n $(PROCESSES) --dist worksteal --durations 15 --durations-min 5

LINT := $(DEV)/bin/python -m ruff check . && $(DEV)/bin/python -m ruff format --check . && $(DEV)/bin/python -m mypy

# Tests flush their files thousands of times, 2 ms each on a disk, so they write to memory if 4 GB are free there.
# `make proofs` writes to the disk.
MEMORY := $(shell free=$$(df -Pk /dev/shm 2>/dev/null | sed -n '2s/^[^ ]* *[0-9]* *[0-9]* *\([0-9]*\).*/\1/p'); test "$${free:-0}" -gt 4000000 && test -w /dev/shm && echo /dev/shm)
quick test test-all sparks: export PYTEST_DEBUG_TEMPROOT := $(MEMORY)

# The tests start many processes, and each would compile all modules again (see tests/conftest.py).
unexport PYTHONDONTWRITEBYTECODE

# Spark takes its settings from here, and runs its Python workers with the environment's own Python.
export SPARK_CONF_DIR := $(CURDIR)/conf
run_in = PYSPARK_PYTHON="$(CURDIR)/$(1)/bin/python" PYSPARK_DRIVER_PYTHON="$(CURDIR)/$(1)/bin/python" $(1)/bin/python

.PHONY: help demo quick kernels kernels-and-classes lint-and-kernels test test-all brokers proofs sparks notebooks docs site release images format lint bench bench-peers figures clean check-java check-python

help:
	@echo "make demo      read a store that a real broker wrote with Spark, and print what is in it; 2 minutes"
	@echo "make quick     lint and the tests that need no JVM and no process of their own (under a minute)"
	@echo "make test      lint, types, and all tests without brokers and long kills; 5 minutes"
	@echo "make test-all  all tests, what .ci/run runs; 18 minutes"
	@echo "make proofs    the slow tests at every point, in every order, with every kill: some hours;"
	@echo "               PART=2/6 runs the second of six parts, each shorter than two hours"
	@echo "make sparks    the matrix of docs/compatibility.md on each Spark of the package index, 4.0 and newer;"
	@echo "               writes the page (a part of make proofs; downloads 450 MB for each Spark once)"
	@echo "make format    format the code, sort the imports"
	@echo "make docs      write the generated tables of docs/ and FORMAT.md again"
	@echo "make site      build the pages as a site in build/site/html; a dead link fails"
	@echo "make release TAG=v0.1.0  build the archives in dist/ and check them, as the release workflow does"
	@echo "make images    record the terminals and the chart of the README again"
	@echo "make notebooks run the notebooks again and keep their new output"
	@echo "make bench     measure an older commit (BASE=29c3d3cb) and this checkout in turns (25 minutes in all);"
	@echo "               ONLY=decode,read@100 measures these parts, EXTENT=--quick a tenth of the messages"
	@echo "make bench-peers  measure rmqlog, Kafka and Parquet in turns (8 minutes; needs Maven)"
	@echo "make figures   measure reading and writing of this checkout, and write the figures of docs/benchmarks.md"
	@echo "make clean     remove the environments and everything that was made"

demo: check-java $(DEMO)/installed
	@$(call run_in,$(DEMO)) examples/demo.py

quick: kernels
	$(DEV)/bin/python -m ruff check .
	$(DEV)/bin/python -m ruff format --check .
	$(DEV)/bin/python -m pytest -n $(PROCESSES) --dist worksteal -q --quick

# Once, before the processes of the tests would each compile them.
kernels: $(DEV)/installed
	@$(DEV)/bin/python -c "from store_format import kernels; kernels.load()"

# Beside each other: each takes half a minute or more the first time, on one core. Lint takes longest.
lint-and-kernels: $(DEV)/installed
	@$(MAKE) --no-print-directory kernels-and-classes & made=$$!; \
	$(MAKE) --no-print-directory lint; lint=$$?; wait $$made && exit $$lint

kernels-and-classes: $(DEV)/installed
	@nice $(MAKE) --no-print-directory kernels & kernels=$$!; \
	nice $(MAKE) --no-print-directory $(DEV)/spark/classes.jsa; classes=$$?; wait $$kernels && exit $$classes

# With which each Spark of the tests starts some seconds sooner.
$(DEV)/spark/classes.jsa: $(DEV)/installed tests/support/spark/fast_start.py
	@echo "archiving the classes of Spark (half a minute)"
	@$(call run_in,$(DEV)) -m tests.support.spark.fast_start $(DEV)/spark

test: check-java lint-and-kernels
	$(call run_in,$(DEV)) -m pytest $(WORKERS) -m "not slow and not interop"

# One run of pytest for all: each further one collects 7,000 tests and starts Spark again in each of its processes,
# and the many short tests fill the time in which the last long one is still running.
# The programs of the tests with a broker are built beside the installation, which keeps one core busy, and lint
# runs beside the tests, of which many wait.
test-all: check-java check-python
	@$(MAKE) --no-print-directory brokers & $(MAKE) --no-print-directory kernels-and-classes; made=$$?; wait; exit $$made
	@(nice sh -c '$(LINT)') & lint=$$!; \
	$(call run_in,$(DEV)) -m pytest $(WORKERS); tests=$$?; wait $$lint && exit $$tests

brokers: check-python
	@"$(PYTHON)" -m tests.interop.maven

# Without a dump of the stacks after four minutes: Python reads them while the threads run on, which can end it.
proofs: check-java lint kernels
	$(call run_in,$(DEV)) -m pytest $(WORKERS) -o faulthandler_timeout=0 -m "slow or interop or whole" --whole $(if $(PART),--part $(PART))

sparks: check-java kernels
	$(call run_in,$(DEV)) -m pytest $(WORKERS) -m slow --whole tests/sparks

format: $(DEV)/installed
	$(DEV)/bin/python -m ruff check --fix --select I .
	$(DEV)/bin/python -m ruff format .

docs: $(DEV)/installed
	$(DEV)/bin/python -m docs.reference
	$(DEV)/bin/python -m docs.format_tables
	$(DEV)/bin/python -m docs.chinese_blocks

site: $(SITE)/installed
	@$(SITE)/bin/python -m docs.site
	@NO_MKDOCS_2_WARNING=1 $(SITE)/bin/python -m mkdocs build --config-file docs/site/mkdocs.yml
	@echo "build/site/html: $(SITE)/bin/python -m http.server --bind 127.0.0.1 --directory build/site/html"

release: check-python
	@rm -rf dist
	@"$(PYTHON)" -m venv .venv-release
	@.venv-release/bin/python $(INSTALL) build twine
	@.venv-release/bin/python -m build --outdir dist .
	@.venv-release/bin/python -m twine check --strict dist/*
	@.venv-release/bin/python -m tests.support.release "$(TAG)"

images: $(DEV)/installed
	$(DEV)/bin/python -m tests.support.pictures

lint: $(DEV)/installed
	$(LINT)

notebooks: check-java $(DEV)/installed
	$(call run_in,$(DEV)) -m notebooks.run

bench: check-java $(DEV)/installed
	$(call run_in,$(DEV)) -m benchmarks.compare $(if $(BASE),--base $(BASE)) $(if $(ONLY),--only $(ONLY)) $(EXTENT)

bench-peers: check-java $(DEV)/installed
	$(call run_in,$(DEV)) -m benchmarks.peers $(EXTENT)

figures: check-java $(DEV)/installed
	$(call run_in,$(DEV)) -m benchmarks --markdown docs/benchmarks.md

clean:
	rm -rf $(DEV) $(DEMO) $(SITE) .venv-release .venvs build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis spark-warehouse metastore_db artifacts derby.log
	rm -rf tests/interop/java/target
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# ---- environments -----------------------------------------------------------------------------------------------------

$(DEV)/installed: pyproject.toml | check-python
	@echo "making $(DEV): the checkout itself, with what tests, lint and benchmarks need"
	@"$(PYTHON)" -m venv $(DEV)
	-@$(DEV)/bin/python $(INSTALL) --upgrade pip # the one that comes with Python 3.11 takes 12 s longer for the rest
	@$(DEV)/bin/python $(INSTALL) --editable '.[dev]'
	@touch $@

$(DEMO)/installed: pyproject.toml $(SOURCES) | check-python
	@echo "making $(DEMO): the package as a user installs it, with PySpark (the first time takes a minute or two)"
	@"$(PYTHON)" -m venv $(DEMO)
	@$(DEMO)/bin/python $(INSTALL) '.[spark]'
	@touch $@

$(SITE)/installed: docs/site/requirements.txt | check-python
	@"$(PYTHON)" -m venv $(SITE)
	@$(SITE)/bin/python $(INSTALL) --requirement docs/site/requirements.txt
	@touch $@

# ---- what the machine must have: one line each ------------------------------------------------------------------------

check-python:
	@if test -z "$(PYTHON)"; then \
	    echo "error: no Python 3.11 or newer found; install one (Debian: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3" >&2; exit 1; fi
	@"$(PYTHON)" -c '$(PYTHON_IS_NEW_ENOUGH)' >/dev/null 2>&1 || { \
	    echo "error: $(PYTHON) is not a Python 3.11 or newer; install one (Debian: apt-get install python3 python3-venv) or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' >/dev/null 2>&1 || { \
	    echo "error: $(PYTHON) cannot make virtual environments; install its venv module (Debian: apt-get install python3-venv)" >&2; exit 1; }

# The same choice as Spark's own launcher: $JAVA_HOME/bin/java if JAVA_HOME is set, else java. `-version` may print other
# lines first ("Picked up JAVA_TOOL_OPTIONS"); before 9 a version begins with "1.".
check-java:
	@java=java; if test -n "$$JAVA_HOME"; then java="$$JAVA_HOME/bin/java"; fi; \
	version=$$("$$java" -version 2>&1 | sed -n 's/^[^"]* version "\([^"]*\)".*/\1/p' | head -n 1); \
	major=$${version#1.}; major=$${major%%[!0-9]*}; \
	install="install a JDK 17 or newer (Debian: apt-get install openjdk-17-jdk-headless) or set JAVA_HOME to one"; \
	if test -z "$$major"; then echo "error: no Java found ($$java does not run); $$install" >&2; exit 1; fi; \
	if test "$$major" -lt 17; then echo "error: $$java is Java $$version, Spark needs 17; $$install" >&2; exit 1; fi
