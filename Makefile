# make demo      install kvsim into .venv and replay the sample trace
# make test      lint, then the tests, with their coverage
# make lint      ruff, mypy, import-linter
# make bench     the speed of the simulator and of the lab on this machine
# make thorough  the long tests, and mutation testing
# make clean     remove what the others made
#
# PYTHON=... chooses the interpreter that .venv is made from.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:  # demo and test install into one .venv
.PHONY: help demo test lint bench thorough clean

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input install --quiet --constraint constraints.txt

# No extra names it: its wheel declares torch, which it does not need.
NIXL := nixl-cu12==1.5.1

# The public traces are not part of the project: tests that need them skip where they are absent.
ifeq ($(origin KVSIM_TRACES),undefined)
ifneq ($(wildcard ../shared/traces),)
export KVSIM_TRACES := $(abspath ../shared/traces)
endif
endif

# Each candidate is run, not only looked up: a version manager leaves shims that do not work, and
# Debian's python3 may lack ensurepip.
FIND_PYTHON = for python in $(or $(PYTHON),python3.13 python3.12 python3.11 python3 python); do \
    "$$python" -c 'import ensurepip, sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
        >/dev/null 2>&1 && echo "$$python" && break; done
FOUND_PYTHON = $(shell $(FIND_PYTHON))
NO_PYTHON = kvsim needs Python 3.11, 3.12 or 3.13 with its venv module, and found none \
    that runs; name one with: make PYTHON=/path/to/python3

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

# `python` is a link to an interpreter of any age, so it is no good as a time stamp.
$(VENV)/.created:
	$(eval CHOSEN := $(FOUND_PYTHON))
	$(if $(CHOSEN),,$(error $(NO_PYTHON)))
	@echo "making $(VENV) with $(CHOSEN)"
	@"$(CHOSEN)" -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing kvsim"
	@$(PIP) --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.created pyproject.toml constraints.txt
	@echo "installing kvsim and the tools of its developers (a minute or two)"
	@$(PIP) --editable '.[dev]'
	@$(PIP) --no-deps $(NIXL) || echo "no $(NIXL) for this machine: the tests of rdma are skipped"
	@touch $(VENV)/.installed $@

demo: $(VENV)/.installed
	$(VENV)/bin/kvsim replay sample:chat --gpu-blocks 4000 --cpu-blocks 12000 --policy lru --out out/demo

lint: $(VENV)/.installed-dev
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(PY) -m mypy
	$(VENV)/bin/lint-imports --no-logo

# What the coverage of the core and the policies is measured with. Measuring takes several times as
# long as running, so the other tests run without.
MEASURED := tests/unit/core tests/unit/policies tests/unit/test_interventions.py tests/property/test_manager.py \
    tests/property/test_found.py tests/property/test_scheduler.py tests/property/test_differential.py
PYTEST := $(PY) -m pytest --numprocesses=auto --dist=worksteal

# One package must not hide behind the other, so each has the limit to itself as well.
test: lint
	$(PYTEST) --cov=kvsim/core --cov=kvsim/policies $(MEASURED)
	$(PY) -m coverage report --format=total --include='kvsim/core/*'
	$(PY) -m coverage report --format=total --include='kvsim/policies/*'
	$(PYTEST) $(addprefix --ignore=,$(MEASURED)) tests

bench: $(VENV)/.installed
	$(PY) tests/bench/run.py
	$(PY) -m tests.bench.hitrate
	$(PY) tests/bench/reading.py

thorough: $(VENV)/.installed-dev
	$(PY) -m pytest -m thorough --hypothesis-profile=thorough
	$(PY) tests/thorough/mutation.py

clean:
	rm -rf $(VENV) out build dist mutants .coverage .coverage.* .hypothesis .import_linter_cache \
	    .mypy_cache .pytest_cache .ruff_cache
	find kvsim tests -name __pycache__ -type d -prune -exec rm -rf {} +
