# The only build file. `make help` explains the targets.
#
#   BACKEND   cpu (MPI, OpenBLAS), cuda (NCCL, cuBLAS), or for tests simt: the CUDA kernels,
#             executed on the CPU. Default: cuda if nvcc and a GPU are present, else cpu
#   CUDA_ARCH the GPU to compile for: 80, 90a, ... Default: the one in this machine, else 90a
#   MPI       mpich or openmpi. Default: whichever is installed, preferably mpich
#   SANITIZE  address or thread: a build of its own under build/cpu-address. Default: none
#   NP, ARGS  ranks and arguments of `make run`
#   EX        an exercise (02.1); SUBMISSIONS a folder of students'; ONLY, SHARE: what to prove
#   HTML      a file: `make grade` also writes a page for a browser
#   WERROR=1  warnings are errors (CI)

# Before anything that macOS's make, which is of 2006, could stumble over:
ifneq ($(shell uname -s),Linux)
$(error Linux only. On macOS use the container: docker build, docker run, as in Dockerfile)
endif
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
SHELL := /bin/bash
, := ,

NVCC    := $(firstword $(shell command -v nvcc) $(wildcard /usr/local/cuda/bin/nvcc))
GPU_ARCH := $(subst .,,$(shell \
              nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1))
BACKEND ?= $(if $(and $(NVCC),$(GPU_ARCH)),cuda,cpu)
ifeq ($(filter cpu cuda simt,$(BACKEND)),)
$(error BACKEND=$(BACKEND): cpu, cuda or simt)
endif
ifeq ($(BACKEND)$(NVCC),cuda)
$(error BACKEND=cuda needs nvcc, the CUDA Toolkit's compiler, on the PATH)
endif
CHAPTERS := $(patsubst %/main.cpp,%,$(sort $(wildcard [0-9][0-9]_*/main.cpp)))
OF_BACKEND := build/$(BACKEND)$(if $(SANITIZE),-$(SANITIZE))
BUILD    := $(OF_BACKEND)$(if $(filter openmpi,$(MPI)),-openmpi)

# ---- what is installed, in a conda environment, or unpacked under .deps by `make deps` -----------
# An active environment counts if CLI11 is in it, which conda's own, the base, has no use for. The
# flags that conda's compilers put into the environment are for packages: they would vectorize
# kernels for the executor, for instance.
CONDA    := $(patsubst %/include/CLI/CLI.hpp,%,$(wildcard $(CONDA_PREFIX)/include/CLI/CLI.hpp))
ifneq ($(CONDA),)
CPPFLAGS =
CXXFLAGS =
endif
DEPS     := $(CURDIR)/.deps/usr
MULTIARCH := $(shell $(CXX) -print-multiarch 2>/dev/null)
DEPS_LIB := $(wildcard $(DEPS)/lib/$(MULTIARCH) $(DEPS)/lib/$(MULTIARCH)/openblas-openmp)
SYSTEM_LIB := $(wildcard /usr/lib/$(MULTIARCH)/openblas-openmp)
# OpenBLAS built with OpenMP shares our threads; the pthread build would start its own as well.
OPENBLAS_INCLUDE := $(firstword $(wildcard $(CONDA:=/include) \
                      $(addsuffix /include/$(MULTIARCH)/openblas-openmp,$(DEPS) /usr) \
                      /usr/include/$(MULTIARCH)/openblas-pthread))

first_tool = $(firstword $(foreach tool,$(1),$(shell \
               PATH="$(DEPS)/bin:$$PATH" command -v $(tool) 2>/dev/null)))
ifeq ($(MPI),openmpi)
MPICXX := $(call first_tool,mpicxx.openmpi)
MPIRUN := $(call first_tool,mpirun.openmpi)
else
MPICXX := $(call first_tool,$(if $(CONDA),,mpicxx.mpich) mpicxx)
MPIRUN := $(call first_tool,$(if $(CONDA),,mpirun.mpich) mpirun)
endif
# `mpicxx -show` prints "g++ -I... -L... -l..." (MPICH and Open MPI both answer to it); a wrapper
# that was unpacked under .deps still names /usr, so its folders are looked up there first.
MPI_SHOW  := $(if $(MPICXX),$(wordlist 2,99,$(shell $(MPICXX) -show 2>/dev/null)))
MPI_FLAGS := $(patsubst -I%,-isystem %,$(filter -I%,$(MPI_SHOW)))
MPI_LIBS  := $(filter -L% -l%,$(filter-out -lmpichcxx -lmpi_cxx,$(MPI_SHOW)))
ifneq ($(filter $(DEPS)/%,$(MPICXX)),)
MPI_FLAGS := $(subst -isystem /usr/,-isystem $(DEPS)/,$(MPI_FLAGS))
endif
# Open MPI must be told to allow root and more ranks than cores, and not to bind a rank, which has
# several threads, to one core.
MPI_IS_OPENMPI := $(if $(MPIRUN),$(shell \
                    $(MPIRUN) --version 2>/dev/null | grep -c 'Open MPI\|OpenRTE'),0)
MPIRUN_FLAGS := $(if $(filter-out 0,$(MPI_IS_OPENMPI)),--allow-run-as-root --oversubscribe \
                  --bind-to none)

# Programs unpacked under .deps find their libraries there.
ifneq ($(DEPS_LIB),)
export PATH := $(DEPS)/bin:$(PATH)
export LD_LIBRARY_PATH := $(subst $() $(),:,$(DEPS_LIB))$(if $(LD_LIBRARY_PATH),:$(LD_LIBRARY_PATH))
endif

# ---- flags ---------------------------------------------------------------------------------------
ARCH     ?= native
CUDA_ARCH ?= $(or $(GPU_ARCH),90a)
# Hopper's wgmma needs 90a, not 90.
override CUDA_ARCH := $(patsubst 90,90a,$(CUDA_ARCH))
CUDA     := $(if $(NVCC),$(patsubst %/bin/,%,$(dir $(realpath $(NVCC)))))
# Operations get -O3, and sqrt without errno, so that their loops are vectorized; what runs for
# every operation, and the kernels' executor, -O2. All else gets -Og, which takes half as long to
# compile and can be debugged. Tests get -O0 without debug information, or -O1 if they compute: also
# all that include the planner, because the linker keeps only one of their copies.
# Under a sanitizer operations get -O1 and the rest -O0.
KERNELS  := $(wildcard 0*/kernels)
OPERATIONS := common/cpu/ops_% common/core/ops_% $(KERNELS:=/ops_%)
FREQUENT := $(addprefix common/,core/% comm/% cpu/% cuda/% model/% emulator/%) 07_kernels/% \
            $(KERNELS:=/%) 09_5d_parallel/planner/planner.cpp tests/bench/%
OPS_TESTS := $(addprefix tests/unit/,ops_% \
                 memory_formulas% pipeline_stages% planner% poster% scale_pictures%)
TESTS    := tests/unit/% tests/ranks/% tests/chapters/% tests/gtest_precompiled.h
IS_OPERATION = $(filter $(OPERATIONS),$<)
OPTIMIZE_PLAIN = $(if $(filter $(OPS_TESTS),$<),-O1 -g0,$(if $(filter $(TESTS),$<),-O0 -g0,\
                   $(if $(IS_OPERATION),-O3 -fno-math-errno,\
                     $(if $(filter $(FREQUENT),$<),-O2,-Og)) -g1))
OPTIMIZE  = $(if $(SANITIZED),$(if $(IS_OPERATION),-O1,-O0) -g1,$(OPTIMIZE_PLAIN)) -march=$(ARCH)
# The address sanitizer instruments what we ship, but not the unit tests, which come from the plain
# build. (The thread sanitizer must see everything that synchronizes.)
PLAIN_SOURCES := $(if $(filter address,$(SANITIZE)),tests/unit/% tests/gtest_precompiled.h)
SANITIZED = $(if $(filter $(PLAIN_SOURCES),$<),,$(SANITIZE))
SANITIZE_FLAGS = $(if $(filter address,$(SANITIZED)),-fsanitize=address -fsanitize=undefined \
                   -fno-sanitize-recover=undefined) \
                 $(if $(filter thread,$(SANITIZED)),-fsanitize=thread)
# GCC collects garbage only where it holds more than 400 MB, which takes a sixth less time.
GCC_HEAP := --param ggc-min-heapsize=400000
# -Wno-array-bounds, -Wno-stringop-overflow: GCC 13 has false positives in fmt 9.
CXXFLAGS += -std=c++20 $(OPTIMIZE) $(GCC_HEAP) -fopenmp -Wall -Wextra \
            -Wno-missing-field-initializers -Wno-array-bounds -Wno-stringop-overflow \
            $(if $(WERROR),-Werror) $(SANITIZE_FLAGS)
INCLUDE_DIRS := -Icommon -I. $(addprefix -isystem ,\
                  $(wildcard $(DEPS)/include $(OPENBLAS_INCLUDE) $(CONDA:=/include)))
CPPFLAGS += $(INCLUDE_DIRS)
LIBRARY_DIRS := $(CONDA:=/lib) $(DEPS_LIB) \
                $(if $(filter cuda,$(BACKEND)),$(wildcard $(CUDA)/lib64),$(SYSTEM_LIB))
library_flags = $(1:%=-L%) $(1:%=-Wl$(,)--disable-new-dtags$(,)-rpath$(,)%)
LDLIBS   += $(call library_flags,$(LIBRARY_DIRS)) $(MPI_LIBS) -lfmt -lboost_context -lpthread \
            -Wl$(,)--export-dynamic-symbol=ucp_disconnect_nb  # common/comm/mpi/communicator.cpp
ifeq ($(BACKEND),cuda)
CUDA_CPPFLAGS := -DULTRASCALE_CUDA -isystem $(CUDA)/include
NVCCFLAGS += -std=c++20 -O3 -lineinfo -gencode=arch=compute_$(CUDA_ARCH),code=sm_$(CUDA_ARCH) \
             --expt-relaxed-constexpr \
             -Xcompiler -Wall$(,)-Wextra$(,)-Wno-missing-field-initializers \
             $(if $(WERROR),-Werror all-warnings)
LDLIBS   += -lcublasLt -lcublas -lnccl -lcudart
else
LDLIBS   += -lopenblas
endif

# Kernels without a GPU (common/emulator): g++ compiles them against stand-ins for CUDA's headers
# and instruments each load and store. Struct copies stay whole and basic blocks are not
# duplicated, so that the reported loads and stores are those that a GPU's compiler would make.
ifneq ($(BACKEND),cuda)
SIMT_CPPFLAGS := -DULTRASCALE_SIMT -Icommon/emulator/include
SIMT_FLAGS := -O1 -fno-tree-sra -fno-thread-jumps -Wno-unknown-pragmas -fsanitize=thread \
              --param tsan-instrument-func-entry-exit=0
EXECUTOR_SOURCES := $(wildcard common/emulator/*.cpp) common/emulator/device.cu
endif
SHARED_ROOMS := $(addprefix common/,core model comm comm/mpi files train lab/*)
BACKEND_ROOMS := $(if $(filter cuda,$(BACKEND)),\
                   common/cuda common/cuda/attention common/comm/nccl,common/cpu)
# An operation of one chapter lies in its kernels/, for the CPU as .cpp and for CUDA as .cu, or, if
# only libraries' kernels are called, as kernels/cuda/*.cpp.
ifeq ($(BACKEND),simt)
COMMON_SOURCES := $(wildcard $(SHARED_ROOMS:=/*.cpp) common/emulator/*.cu common/cuda/ops_*.cu \
                    common/cuda/attention/ops_*.cu $(KERNELS:=/ops_*.cu) \
                    $(KERNELS:=/emulator/*.cu)) \
                  $(EXECUTOR_SOURCES) \
                  $(patsubst %,common/cpu/%.cpp,device stream comm ops_matmul)
else
COMMON_SOURCES := $(wildcard $(SHARED_ROOMS:=/*.cpp) \
                    $(foreach room,$(BACKEND_ROOMS),$(room)/*.cpp $(room)/*.cu) \
                    $(if $(filter cuda,$(BACKEND)),$(KERNELS:=/*.cu) $(KERNELS:=/cuda/*.cpp),\
                      $(KERNELS:=/*.cpp)))
endif

# Most sources are the same for all backends and are compiled once, into build/obj. Others belong to
# a backend, or include mpi.h, which differs between MPI implementations. Only these get the flags
# for either, so that no other source can come to depend on them. simt takes its CPU sources from
# the CPU backend's objects.
BACKEND_SOURCES := %.cu common/cpu/% common/cuda/% common/comm/nccl/% common/emulator/% \
                   07_kernels/% $(KERNELS:=/%) \
                   $(if $(filter simt,$(BACKEND)),tests/%)
MPI_SOURCES := common/comm/%.cpp common/cpu/comm.cpp tests/faults/%.cpp \
               $(patsubst %,tests/ranks/%_test.cpp,card_bytes comm comm_mailbox comm_sent \
                 comm_split comm_symmetric ring_all_reduce slow_links tree_all_reduce)
OF_MPI    := $(if $(filter openmpi,$(MPI)),$(MPI_SOURCES),none)
OF_CPU    := $(if $(filter simt,$(BACKEND)),common/cpu/% common/emulator/%.cpp)
SHARED    := $(if $(SANITIZE),$(OF_BACKEND),build)
objects_in = $(patsubst %,$(1)/obj/%.o,$(basename $(2)))
objects   = $(call objects_in,$(BUILD),$(filter $(OF_MPI),$(1))) \
            $(call objects_in,build/cpu,$(filter $(OF_CPU),$(1))) \
            $(call objects_in,$(OF_BACKEND),\
              $(filter $(BACKEND_SOURCES),$(filter-out $(OF_MPI) $(OF_CPU),$(1)))) \
            $(call objects_in,build,$(filter $(PLAIN_SOURCES),$(1))) \
            $(call objects_in,$(SHARED),\
              $(filter-out $(BACKEND_SOURCES) $(OF_MPI) $(PLAIN_SOURCES),$(1)))
# Headers of the standard library, fmt and GoogleTest are compiled once for each set of flags
# (core/precompiled.h). GCC looks for what fits in a folder of the header's name, and reads the
# header itself if nothing does.
PLAIN     := $(if $(PLAIN_SOURCES),build,$(SHARED))
PRECOMPILED := $(addprefix $(SHARED)/precompiled/core/precompiled.h.gch/,host operation)
KERNEL_PRECOMPILED := build/precompiled/core/precompiled.h.gch/kernel
TESTS_PRECOMPILED := $(addprefix $(PLAIN)/precompiled/gtest_precompiled.h.gch/,test ops_test)
USE_PRECOMPILED = -I$(if $(SANITIZED),$(SHARED),build)/precompiled -Itests -include \
                    $(if $(filter $(TESTS),$<),gtest_precompiled.h,core/precompiled.h)
FOLDERS   := $(sort build $(if $(OF_CPU),build/cpu) $(BUILD) $(OF_BACKEND) $(SHARED))
COMMON_OBJECTS := $(call objects,$(sort $(COMMON_SOURCES)))
LIBRARY  := $(BUILD)/libcommon.a
PROGRAMS := $(addprefix $(BUILD)/,$(CHAPTERS))
# A chapter's program consists of all sources in its folder and in those below, but for kernels/,
# which are in the library. If a concept is written for both backends, its .cu replaces the .cpp of
# the same name.
chapter_kernels = $(if $(filter cuda,$(BACKEND)),$(wildcard $(1)/*.cu))
chapter_sources = $(sort $(chapter_kernels) $(filter-out $(patsubst %.cu,%.cpp,$(chapter_kernels)),\
                    $(filter-out $(KERNELS:=/%),$(wildcard $(1)/*.cpp $(1)/*/*.cpp))))
KERNEL_OBJECTS := $(call objects,$(sort $(EXECUTOR_SOURCES) $(filter-out 07_kernels/python/%,\
                    $(wildcard 07_kernels/*.cpp 07_kernels/*.cu 07_kernels/*/*.cpp \
                      07_kernels/*/*.cu))))
COMM_OBJECTS := $(call objects,$(sort $(wildcard tests/ranks/*.cpp)))
UNIT_OBJECTS := $(call objects,$(sort $(wildcard tests/unit/*.cpp) \
                  09_5d_parallel/planner/hardware.cpp))
# The executor's own tests; the code with which 07_kernels checks its kernels; and the operations'
# tests, run on the CUDA kernels.
SIMT_TEST_OBJECTS := $(call objects,$(sort $(wildcard \
                       tests/simt/*.cpp tests/simt/*.cu tests/unit/ops_*_test.cpp \
                       $(filter-out 07_kernels/main.cpp,$(wildcard 07_kernels/*.cpp)) \
                       07_kernels/*/*.cpp)))
# Long tests are in files of their own, which only test-all compiles, or have names that begin with
# Long.
LONG_SOURCES := $(wildcard tests/chapters/long_*.cpp)
CHAPTER_OBJECTS := $(call objects,$(sort \
                     $(filter-out $(LONG_SOURCES),$(wildcard tests/chapters/*.cpp))))
LONG_OBJECTS := $(call objects,$(sort $(LONG_SOURCES) tests/chapters/run_program.cpp))
BENCHES  := $(patsubst tests/bench/%.cpp,$(BUILD)/%,$(wildcard tests/bench/*.cpp))

.PHONY: all help demo pictures mpirun test test-all test-nodes compute-sanitizer run bench fuzz \
        deps format clean bits options test-programs all-test-programs exercise grade solutions \
        clinic prove course slides python $(CHAPTERS)
LONGEST_FIRST := 09_5d_parallel $(CHAPTERS)
all: $(LONGEST_FIRST) compile_commands.json  ## build all chapters of the chosen backend

$(CHAPTERS): %: $(BUILD)/%

help:  ## show this text
	@grep -hE '^[a-z_%-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([^:]+):.*## /\1\t/' | \
	    awk -F'\t' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo "  make CHAPTER        build one chapter:"
	@echo $(CHAPTERS) | fold -s -w 78 | sed 's/^/                      /'
	@sed -n 's/^#   //p' Makefile | sed 's/^/  /'

# ---- running -------------------------------------------------------------------------------------
# Targets that need what `deps` installs start another make: this one looked for it before.
# Sub-makes use all cores, or the job slots of the make that was called. (nproc obeys OpenMP's
# variables, which say how many threads a rank gets.)
CORES := $(shell env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
JOBS = $(if $(filter -j% --jobserver%,$(MAKEFLAGS)),,-j$(CORES))
demo: deps  ## install what is missing, build, run every technique on real text: one table
	$(MAKE) $(JOBS) --no-print-directory $(LONGEST_FIRST)
	@./tests/demo.sh $(BUILD) "$$($(MAKE) -s --no-print-directory mpirun)"
pictures: $(PROGRAMS)  ## draw the READMEs' pictures anew, each from a run of its chapter
	@./tests/pictures.sh $(BUILD) "$(MPIRUN) $(MPIRUN_FLAGS)"
mpirun:
	@echo $(MPIRUN) $(MPIRUN_FLAGS)

python: $(BUILD)/libelu.so  ## build a kernel as a library, and call it from Python
	@$(or $(PYTHON),python3) 07_kernels/python/elu.py $<

CHAPTER ?= 00_single_gpu
NP      ?= 1
run: $(BUILD)/$(CHAPTER)  ## run CHAPTER=00_single_gpu on NP=1 ranks with ARGS="..."
	$(MPIRUN) $(MPIRUN_FLAGS) -n $(NP) $(BUILD)/$(CHAPTER) $(ARGS)

test: deps  ## build, and run the quick tests
	$(MAKE) $(JOBS) --no-print-directory test-programs
	@tests/run_all.sh $(BACKEND) "$(MPIRUN) $(MPIRUN_FLAGS)"
COMPILED_BY = gcc $(shell $(CXX) -dumpfullversion) -march=$(shell $(CXX) -march=$(ARCH) -Q \
                  --help=target 2>/dev/null | sed -nE 's/^\s*-march=\s*(\S+)$$/\1/p' | head -1)
bits: $(PROGRAMS)  ## compare what 22 runs compute with tests/bits.json (RECORD=yes: write it)
	@python3 tests/bits.py $(if $(RECORD),record,compare) $(BUILD) "$(COMPILED_BY)" $(MPIRUN) \
	    $(MPIRUN_FLAGS)
test-nodes: $(PROGRAMS)  ## chapters on several hosts and under Slurm (of namespaces: needs root)
	@python3 tests/nodes/nodes_test.py $(BUILD) "$(MPIRUN)"
options: $(PROGRAMS)  ## write down which chapter has which option, as --help says
	@python3 tests/options.py $(BUILD)
ifeq ($(BACKEND),cuda)
test-all: deps  ## every test; on the CPU also the CUDA kernels, sanitizers, Open MPI, fuzzing
	$(MAKE) $(JOBS) --no-print-directory all-test-programs
	@tests/run_all.sh cuda "$(MPIRUN) $(MPIRUN_FLAGS)" all

# racecheck and initcheck leave out what calls cuBLAS (on Hopper racecheck fails inside its kernels)
# and our own kernels for Hopper: they do not see what the copy engine (TMA) loads and stores.
# memcheck runs all of them.
SANITIZER := compute-sanitizer --error-exitcode 1 --print-limit 10
RACECHECKED := Ops*:-OpsMatmul*:OpsAttention.Naive*:OpsAttention.RowsWithoutKeys*
compute-sanitizer:  ## operations, 07_kernels under memcheck, racecheck, initcheck (needs a GPU)
compute-sanitizer: $(BUILD)/unit_test $(BUILD)/07_kernels
	$(SANITIZER) --tool memcheck $(BUILD)/unit_test \
	    --gtest_filter='Ops*:Llama*:Optimizer*:AdamW*:Documents*'
	$(SANITIZER) --tool memcheck $(BUILD)/07_kernels --check
	export ULTRASCALE_NO_HOPPER=1; for tool in racecheck initcheck; do \
	    $(SANITIZER) --tool $$tool $(BUILD)/07_kernels --check && \
	    $(SANITIZER) --tool $$tool $(BUILD)/unit_test --gtest_filter='$(RACECHECKED)' || \
	    exit 1; done
else
test-all: deps
	$(MAKE) $(JOBS) --no-print-directory all-test-programs
	$(MAKE) $(JOBS) --no-print-directory BACKEND=simt build/simt/simt_test
	$(MAKE) $(JOBS) --no-print-directory SANITIZE=address \
	    $(addprefix build/cpu-address/,unit_test 00_single_gpu fuzz_readers)
	$(MAKE) $(JOBS) --no-print-directory SANITIZE=thread build/cpu-thread/comm_test
	@if command -v mpicxx.openmpi >/dev/null; then \
	    $(MAKE) $(JOBS) --no-print-directory MPI=openmpi \
	        $(addprefix build/cpu-openmpi/,comm_test 01_data_parallel); fi
	@tests/run_all.sh cpu "$(MPIRUN) $(MPIRUN_FLAGS)" all
endif

test-programs: all $(BUILD)/unit_test $(BUILD)/comm_test $(BUILD)/chapter_test
all-test-programs: test-programs $(BUILD)/long_test $(BUILD)/fault_program

# ---- the classroom (classroom/README.md) ---------------------------------------------------------
# Exercises are built with the CPU backend, without optimization, apart from the kernels, which the
# executor needs optimized a little.
CLASSROOM_FLAGS := -std=c++20 -O0 -g0 $(GCC_HEAP) -march=$(ARCH) -fopenmp -Wall -Wextra \
    -Wno-missing-field-initializers -Wno-unused -Wno-array-bounds -Wno-stringop-overflow
export CLASSROOM = {"cxx": "$(CXX)", "flags": "$(filter-out -I%,$(CPPFLAGS)) $(CLASSROOM_FLAGS)", \
    "mpi": "$(MPI_FLAGS)", "simt": "$(SIMT_CPPFLAGS) $(SIMT_FLAGS)", "libraries": "$(LDLIBS)", \
    "precompiled": "$(firstword $(TESTS_PRECOMPILED))", \
    "kernel_precompiled": "$(KERNEL_PRECOMPILED)", \
    "mpirun": "$(MPIRUN) $(MPIRUN_FLAGS)", "make": "$(MAKE) BACKEND=cpu", \
    "library": "build/cpu/libcommon.a", "kernel_objects": "$(KERNEL_OBJECTS)"}
GRADER := python3 classroom/grade.py
exercise:  ## write exercise EX=02.1 into exercises/, or list all exercises
	@+$(call on_cpu,$(GRADER) exercise $(EX))
grade:  ## grade exercise EX=02.1, CASE=3, all of yours, or all students' (SUBMISSIONS=dir)
	@+$(call on_cpu,$(GRADER) $(if $(SUBMISSIONS),submissions $(SUBMISSIONS),grade \
	    $(or $(EX),$(if $(CASE),clinic.$(CASE)))) \
	    $(if $(HTML),--html $(HTML)))
clinic:  ## run sick training CASE=3 into clinic/3/, or list all cases
	@+$(call on_cpu,python3 classroom/clinic.py run $(CASE))
solutions:  ## for teachers: print the solutions, or that of EX=02.1, or of CASE=3 of the clinic
	@$(if $(CASE),,$(GRADER) solutions $(EX))
	@$(if $(EX),,python3 classroom/clinic.py solution $(CASE))
prove:  ## prove the grader: solutions get all points, wrong ones do not
	@+$(call on_cpu,$(if $(filter clinic,$(ONLY)),python3 classroom/clinic.py prove $(CASE),\
	    $(GRADER) prove ONLY=$(ONLY) SHARE=$(SHARE)))
on_cpu = $(if $(filter cpu,$(BACKEND)),$(1),$(MAKE) -s BACKEND=cpu $@)

course: $(PROGRAMS)  ## a site of all pages, slides, some reports: build/course/index.html
	@./tests/deps.sh python3-markdown-it python3-pygments
	@MPIRUN="$(MPIRUN) $(MPIRUN_FLAGS)" python3 classroom/kit/course.py $(BUILD) build/course
slides: course  ## print the slides as PDF, with chromium
	@python3 classroom/kit/course.py --pdf build/course

bench: export PYTHON ?= python3
bench: $(BENCHES) $(PROGRAMS)  ## time operations, collectives and training, next to PyTorch
	@tests/bench/run.sh $(BACKEND) $(BUILD) "$(MPIRUN) $(MPIRUN_FLAGS)"

FUZZ_SECONDS ?= 60
fuzz:  ## give the readers corrupted files for 60 seconds, under the address sanitizer
	$(MAKE) $(JOBS) --no-print-directory BACKEND=cpu SANITIZE=address build/cpu-address/fuzz_readers
	build/cpu-address/fuzz_readers $(FUZZ_SECONDS)

format:  ## clang-format all sources
	clang-format -i $(shell git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')

clean:  ## remove build/
	rm -rf build compile_commands.json

# ---- dependencies --------------------------------------------------------------------------------
PACKAGES := g++ $(if $(filter openmpi,$(MPI)),openmpi-bin libopenmpi-dev,mpich libmpich-dev) \
            libopenblas-openmp-dev libcli11-dev nlohmann-json3-dev libfmt-dev libgtest-dev \
            libboost-context-dev python3
deps:  ## install what is missing: as root with apt, else unpacked under .deps/
	@CXX="$(CXX)" CONDA="$(CONDA)" MPI_FLAGS="$(MPI_FLAGS) $(MPI_LIBS)" MPIRUN="$(MPIRUN)" \
	    FLAGS="$(CPPFLAGS) $(call library_flags,$(CONDA:=/lib) $(DEPS_LIB) $(SYSTEM_LIB))" \
	    ./tests/deps.sh $(PACKAGES)

# ---- compiling -----------------------------------------------------------------------------------
# Where a folder has a .cpp and a .cu of one name, the rule that comes first is taken: on a GPU, and
# in tests of the CUDA kernels without one, that for the .cu.
ifeq ($(BACKEND),cuda)
$(OF_BACKEND)/obj/%.o: %.cu Makefile
	@mkdir -p $(@D)
	$(NVCC) $(INCLUDE_DIRS) -DULTRASCALE_CUDA $(NVCCFLAGS) -MMD -MP -c $< -o $@
else
SIMT_CXXFLAGS = $(CPPFLAGS) $(SIMT_CPPFLAGS) $(filter-out -O2 -O3 -Og,$(CXXFLAGS)) $(SIMT_FLAGS)
define executed_kernel
$(OF_BACKEND)/obj/%.o: %.cu Makefile | $(KERNEL_PRECOMPILED)
	@mkdir -p $$(@D)
	$$(CXX) $$(USE_PRECOMPILED) $$(SIMT_CXXFLAGS) -x c++ -MMD -MP -c $$< -o $$@
endef
$(if $(filter simt,$(BACKEND)),$(eval $(executed_kernel)))
$(KERNEL_PRECOMPILED): common/core/precompiled.h Makefile
	@mkdir -p $(@D)
	$(CXX) $(SIMT_CXXFLAGS) -x c++-header -c $< -o $@
endif
define compile
$(1)/obj/%.o: %.cpp Makefile | $(PRECOMPILED)
	@mkdir -p $$(@D)
	$$(CXX) $$(USE_PRECOMPILED) $$(CPPFLAGS) \
	    $$(if $$(filter $$(MPI_SOURCES),$$<),$$(MPI_FLAGS)) \
	    $$(if $$(filter $$(BACKEND_SOURCES),$$<),$$(CUDA_CPPFLAGS)) \
	    $$(CXXFLAGS) -MMD -MP -c $$< -o $$@
endef
$(foreach folder,$(FOLDERS),$(eval $(call compile,$(folder))))
define precompile
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) -x c++-header -c $< -o $@
endef
$(PRECOMPILED): common/core/precompiled.h Makefile
	$(precompile)
$(TESTS_PRECOMPILED): tests/gtest_precompiled.h common/core/precompiled.h Makefile
	$(precompile)
$(UNIT_OBJECTS) $(COMM_OBJECTS) $(CHAPTER_OBJECTS) $(LONG_OBJECTS): | $(TESTS_PRECOMPILED)
%/operation: OPERATIONS += common/core/precompiled.h
%/ops_test: OPS_TESTS += tests/gtest_precompiled.h
# Sources that are compiled together with kernels, or run them.
WITH_KERNELS := $(if $(filter simt,$(BACKEND)),tests) 07_kernels
$(addsuffix /%.o,$(addprefix $(OF_BACKEND)/obj/,$(WITH_KERNELS))): CPPFLAGS += $(SIMT_CPPFLAGS)
$(if $(filter cpu,$(BACKEND)),$(eval $(executed_kernel)))

$(LIBRARY): $(COMMON_OBJECTS)
	@rm -f $@
	ar rcs $@ $^

# 07_kernels has its own kernels and, without a GPU, the executor that runs them.
$(BUILD)/07_kernels: $(KERNEL_OBJECTS) $(LIBRARY)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -o $@

# One of them as a library for other languages, which contains nothing else.
$(BUILD)/libelu.so: 07_kernels/python/elu.cu 07_kernels/1_first_steps/elu.cuh Makefile
	@mkdir -p $(@D)
	$(if $(filter cuda,$(BACKEND)),$(NVCC) $(NVCCFLAGS) -Xcompiler -fPIC,\
	    $(CXX) $(CPPFLAGS) $(SIMT_CPPFLAGS) $(CXXFLAGS) -fPIC -x c++) -shared $< -o $@

define chapter_program
$(BUILD)/$(1): $(call objects,$(chapter_sources)) $(LIBRARY)
	$$(CXX) $$(CXXFLAGS) $$^ $$(LDLIBS) -o $$@
endef
$(foreach chapter,$(filter-out 07_kernels,$(CHAPTERS)),$(eval $(call chapter_program,$(chapter))))

$(BUILD)/unit_test: $(UNIT_OBJECTS) $(LIBRARY)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -lgtest -lgtest_main -o $@

$(BUILD)/simt_test: $(SIMT_TEST_OBJECTS) $(LIBRARY)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -lgtest -lgtest_main -o $@

$(BUILD)/chapter_test: $(CHAPTER_OBJECTS)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -lgtest -lgtest_main -o $@

$(BUILD)/long_test: $(LONG_OBJECTS)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -lgtest -lgtest_main -o $@

$(BUILD)/fault_program: $(call objects,tests/faults/fault_program.cpp) $(LIBRARY)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -o $@

$(BENCHES): $(BUILD)/%: $(SHARED)/obj/tests/bench/%.o $(LIBRARY)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -o $@

$(BUILD)/fuzz_readers: $(call objects,$(wildcard tests/fuzz/*.cpp)) $(LIBRARY)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -o $@

# Its main() is in comm_test.cpp, because it has to finalize MPI.
$(BUILD)/comm_test: $(COMM_OBJECTS) $(LIBRARY)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -lgtest -o $@

# For clangd: how each source is compiled.
SOURCES := $(filter %.cpp,$(COMMON_SOURCES)) $(wildcard tests/*/*.cpp) 07_kernels/main.cpp \
           $(filter %.cpp,$(foreach chapter,$(filter-out 07_kernels,$(CHAPTERS)),\
             $(call chapter_sources,$(chapter))))
CLANGD_COMMAND = $(CXX) $(CPPFLAGS) $(MPI_FLAGS) $(CUDA_CPPFLAGS) $(CXXFLAGS) -c
compile_commands.json: Makefile
	@{ echo '['; separator=; for source in $(SOURCES); do \
	    printf '%s{"directory": "$(CURDIR)", "file": "%s", "command": "$(CLANGD_COMMAND) %s"}\n' \
	        "$$separator" $$source $$source; \
	    separator=,; done; echo ']'; } > $@

-include $(shell find $(FOLDERS:=/obj) -name '*.d' 2>/dev/null)
