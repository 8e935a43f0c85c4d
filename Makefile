# make demo | test | test-gpu | lint | bench | bench-overhead | bench-guards | build | clean. Each target does its own set-up, in $(VENV); repeated runs reuse it.
# PYTHON: the CPython that $(VENV) is made with. PYTEST_ARGS: further arguments of pytest.

VENV ?= .venv
PY := $(VENV)/bin/python
TORCH ?= 2.13.0
PYTEST_ARGS ?=
# A frame-test environment per further CPython: FRAME_VERSIONS="" skips them.
FRAME_VERSIONS ?= 3.12 3.13
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CCOMPILE_TEST_EXT ?= 1

DEPS := $(VENV)/.ccompile-deps
LINT := $(VENV)/.ccompile-lint
BUILT := $(VENV)/.ccompile-built
# INSTALL=0: nothing is installed; $(PY) is a python that has torch (2.10 or later), setuptools and pytest. For machines without
# a registry: make test-gpu INSTALL=0 PY=python3
INSTALL ?= 1
ifeq ($(INSTALL),0)
DEPS :=
BUILT := build/.ccompile-built
export PYTHONPATH := python:$(PYTHONPATH)
endif
INPUTS := setup.py pyproject.toml $(wildcard csrc/*/*.c csrc/*/*.h csrc/*/*.def csrc/*/*.inc)

.PHONY: demo test test-gpu bench-gpu test-frames test-cpython test-faults test-main lint bench bench-overhead bench-guards bench-compile build clean distclean
.DELETE_ON_ERROR:
.NOTPARALLEL:

demo: $(BUILT)
	$(PY) -m ccompile demo $(DEMO_ARGS)

test: test-frames test-main

test-main: $(BUILT)
	$(PY) -m pytest tests -q $(PYTEST_ARGS)

# CPython's own tests, each method compiled and called four times: tests/cpython/run.py says what is compared. A part of them:
# make test-cpython MODULES="test_set test_dict.DictTest"
test-cpython: $(BUILT)
	$(PY) tests/cpython/run.py $(CPYTHON_ARGS) $(MODULES)

# Faults put into passes, one after the other: the goldens or the verifier have to notice each.
test-faults: $(BUILT)
	$(PY) tests/pass_faults.py $(FAULTS_ARGS)

build: $(BUILT)

# On a machine with an NVIDIA GPU: the suites that compare with eager, with all tensors on it. The torch in $(VENV) has to be
# a CUDA build. Breaks are the same as on the CPU, and which steps are torch's is not. A process that loses its GPU ends there:
# where pytest-xdist is installed another one goes on.
GPU_TESTS ?= tests/test_gpu.py tests/test_ops.py tests/test_models.py tests/test_written.py
test-gpu: $(BUILT)
	@$(PY) -c "import sys, torch; sys.exit(not torch.cuda.is_available())" \
	  || { echo "ccompile: torch sees no GPU (torch.cuda.is_available() is false)" >&2; exit 1; }
	CCOMPILE_TEST_DEVICE=cuda $(PY) -m pytest -q $(GPU_TESTS) -k "not dynamo" --deselect=tests/test_ops.py::test_kernels \
	  $$($(PY) -c "import xdist" 2>/dev/null && echo "-n 8 --max-worker-restart=99") $(PYTEST_ARGS)

bench-gpu: $(BUILT)
	$(PY) benchmarks/bench_gpu.py $(BENCH_ARGS)

# Peers are measured when they are there: $(VENV)/bin/python -m pip install -e '.[bench]' --no-build-isolation
bench: $(BUILT)
	$(PY) benchmarks/bench_models.py $(BENCH_ARGS)

bench-overhead: $(BUILT)
	$(PY) benchmarks/bench_overhead.py $(BENCH_ARGS)

bench-guards: $(BUILT)
	$(PY) benchmarks/bench_guards.py $(BENCH_ARGS)

bench-compile: $(BUILT)
	$(PY) benchmarks/bench_compile.py $(BENCH_ARGS)

# ---- set-up

# The first python with headers, venv and pip: $(PYTHON), else CPython 3.11 under its usual names.
define FIND_PYTHON
for p in $(PYTHON) python3.11 python3 $${PYENV_ROOT:-$$HOME/.pyenv}/versions/3.11.*/bin/python /usr/bin/python3.11; do \
  "$$p" -c 'import sys, os, venv, ensurepip, sysconfig as s; \
ok = sys.version_info[:2] == (3, 11) or len(sys.argv) > 1; \
sys.exit(not (ok and os.path.exists(os.path.join(s.get_path("include"), "Python.h"))))' $(PYTHON) 2>/dev/null \
  && { echo "$$p"; break; }; done
endef

ifneq ($(INSTALL),0)
$(PY):
	@p="$$($(FIND_PYTHON))"; test -n "$$p" || { \
	  echo "ccompile: no CPython 3.11 with headers, venv and pip was found; name one: make PYTHON=..." >&2; exit 1; }; \
	echo "creating $(VENV) with $$p"; "$$p" -m venv $(VENV)

# What is there already is kept: pip only looks whether the pins hold.
$(DEPS): pyproject.toml | $(PY)
	$(PY) -m pip install -q "setuptools>=77" wheel
	@$(PY) -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$(TORCH)')" 2>/dev/null \
	  || { echo "installing torch $(TORCH)"; $(PY) -m pip install -q "torch==$(TORCH)"; }
	@echo "installing what pyproject.toml names, and ccompile itself"
	$(PY) -m pip install -q -e '.[dev]' --no-build-isolation
	@touch $@
endif

# Only what has changed is compiled (setup.py).
$(BUILT): $(INPUTS) $(DEPS)
	$(PY) setup.py -q build_ext --inplace
	@mkdir -p $(@D) && touch $@

$(LINT): pyproject.toml $(DEPS)
	$(PY) -m pip install -q -e '.[lint]' --no-build-isolation
	@touch $@

# ---- checks

lint: $(LINT)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check python benchmarks setup.py tests/test_arch.py tests/test_api.py
	$(VENV)/bin/clang-format --dry-run -Werror csrc/*/*.[ch] csrc/*/*.inc tests/core/*.c
	$(PY) -m mypy
	$(PY) -m codespell_lib csrc python tests benchmarks notebooks README.md Makefile setup.py

# The evaluator's own tests on the other supported CPythons: a light environment each, without torch. All that knows Python.h
# has to compile there, too.
FRONT := $(wildcard csrc/tens/*.c csrc/guard/*.c csrc/rec/*.c csrc/eval/*.c csrc/mod/*.c)
test-frames: $(BUILT)
	@for v in $(FRAME_VERSIONS); do $(MAKE) --no-print-directory .frames-$$v || exit 1; done

.frames-%:
	@p=""; for c in $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$*.*/bin/python python$*; do \
	  "$$c" -c 'import sys, os, sysconfig as s; sys.exit(not os.path.exists(os.path.join(s.get_path("include"), "Python.h")))' \
	    2>/dev/null && { p="$$c"; break; }; done; \
	tests="$$(ls tests/test_frame*.py 2>/dev/null)"; \
	if [ -z "$$p" ]; then echo "frame tests on CPython $*: skipped, no such interpreter with headers was found"; \
	elif [ -z "$$tests" ] || [ ! -e csrc/mod/frametest.c ] || [ ! -e csrc/py/frame_$(subst .,,$*).c ]; then \
	  echo "frame tests on CPython $*: skipped, they are not there yet"; \
	else set -e; e=.venv-$*; test -x $$e/bin/python || "$$p" -m venv $$e; \
	  if [ ! -e $$e/.deps ] || [ pyproject.toml -nt $$e/.deps ]; then \
	    $$e/bin/python -m pip install -q "setuptools>=77" \
	      $$(sed -n 's/^ *"\(\(pytest\|hypothesis\)==[^"]*\)",$$/\1/p' pyproject.toml); touch $$e/.deps; fi; \
	  inc="$$("$$p" -c 'import sysconfig as s; print(s.get_path("include"))')"; \
	  $(CC) -std=gnu11 -fsyntax-only -Wall -Wextra -Werror -DCC_DEBUG=0 -I"$$inc" $(FRONT); \
	  CCOMPILE_TEST_EXT=frame $$e/bin/python setup.py -q build_ext --build-lib build/frames-$*; \
	  echo "frame tests on CPython $*"; \
	  PYTHONPATH=build/frames-$* $$e/bin/python -m pytest -q --noconftest -p no:cacheprovider $$tests; \
	fi

clean:
	rm -rf build python/*.egg-info python/ccompile/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  $(VENV)/.ccompile-built
	find python tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-3.*
