# The only build file. `make help` explains the targets.
#
#   BACKEND   cpu (MPI + OpenBLAS)                                           default: cpu
#   MPI       mpich or openmpi                                               default: whichever is there, mpich first
#   SANITIZE  address or thread: a build of its own under build/cpu-address  default: none
#   NP, ARGS  ranks and arguments of `make run`
#   WERROR=1  warnings are errors (CI)

.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SUFFIXES:
SHELL := /bin/bash
, := ,

BACKEND ?= cpu
ifneq ($(BACKEND),cpu)
$(error BACKEND=$(BACKEND) is not there yet; the CPU backend is: BACKEND=cpu)
endif
CHAPTERS := $(patsubst %/main.cpp,%,$(sort $(wildcard [0-9][0-9]_*/main.cpp)))
BUILD    := build/$(BACKEND)$(if $(filter openmpi,$(MPI)),-openmpi)$(if $(SANITIZE),-$(SANITIZE))

# ---- what is installed, or unpacked under .deps by `make deps` -----------------------------------------------------------
DEPS     := $(CURDIR)/.deps/usr
MULTIARCH := $(shell $(CXX) -print-multiarch 2>/dev/null)
DEPS_LIB := $(wildcard $(DEPS)/lib/$(MULTIARCH) $(DEPS)/lib/$(MULTIARCH)/openblas-openmp)
SYSTEM_LIB := $(wildcard /usr/lib/$(MULTIARCH)/openblas-openmp)
# OpenBLAS built with OpenMP shares our threads; the pthread build would bring its own beside them.
OPENBLAS_INCLUDE := $(firstword $(wildcard $(addsuffix /include/$(MULTIARCH)/openblas-openmp,$(DEPS) /usr) \
                      $(CONDA_PREFIX)/include /usr/include/$(MULTIARCH)/openblas-pthread))

first_tool = $(firstword $(foreach tool,$(1),$(shell PATH="$(DEPS)/bin:$$PATH" command -v $(tool) 2>/dev/null)))
ifeq ($(MPI),openmpi)
MPICXX := $(call first_tool,mpicxx.openmpi)
MPIRUN := $(call first_tool,mpirun.openmpi)
else
MPICXX := $(call first_tool,mpicxx.mpich mpicxx)
MPIRUN := $(call first_tool,mpirun.mpich mpirun)
endif
# `mpicxx -show` prints "g++ -I... -L... -l..." (MPICH and Open MPI both answer to it); a wrapper that was unpacked under
# .deps still names /usr, so its folders are looked up there first.
MPI_SHOW  := $(if $(MPICXX),$(wordlist 2,99,$(shell $(MPICXX) -show 2>/dev/null)))
MPI_FLAGS := $(patsubst -I%,-isystem %,$(filter -I%,$(MPI_SHOW)))
MPI_LIBS  := $(filter -L% -l%,$(filter-out -lmpichcxx -lmpi_cxx,$(MPI_SHOW)))
ifneq ($(filter $(DEPS)/%,$(MPICXX)),)
MPI_FLAGS := $(subst -isystem /usr/,-isystem $(DEPS)/,$(MPI_FLAGS))
endif
# Open MPI wants to be told that root and more ranks than cores are meant.
MPI_IS_OPENMPI := $(shell $(MPIRUN) --version 2>/dev/null | grep -c 'Open MPI\|OpenRTE')
MPIRUN_FLAGS := $(if $(filter-out 0,$(MPI_IS_OPENMPI)),--allow-run-as-root --oversubscribe)

# ---- flags ---------------------------------------------------------------------------------------------------------------
ARCH     ?= native
# The operations are compiled with -O3, so that their loops become vector code; the rest with -O2.
OPTIMIZE  = $(if $(SANITIZE),-O1,$(if $(filter common/cpu/ops_%,$<),-O3,-O2)) -g1 -march=$(ARCH)
SANITIZE_FLAGS := $(if $(filter address,$(SANITIZE)),-fsanitize=address -fsanitize=undefined -fno-sanitize-recover=undefined) \
                  $(if $(filter thread,$(SANITIZE)),-fsanitize=thread)
CXXFLAGS += -std=c++20 $(OPTIMIZE) -fopenmp -Wall -Wextra -Wno-missing-field-initializers $(if $(WERROR),-Werror) $(SANITIZE_FLAGS)
CPPFLAGS += -Icommon -I. -DFMT_HEADER_ONLY $(MPI_FLAGS) $(addprefix -isystem ,$(wildcard $(DEPS)/include $(OPENBLAS_INCLUDE) $(CONDA_PREFIX)/include))
LDLIBS   += $(addprefix -L,$(DEPS_LIB) $(SYSTEM_LIB)) $(foreach d,$(DEPS_LIB) $(SYSTEM_LIB),-Wl$(,)-rpath$(,)$(d)) \
            $(MPI_LIBS) -lopenblas -lpthread

COMMON_OBJECTS := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(sort $(wildcard common/*.cpp common/$(BACKEND)/*.cpp)))
LIBRARY  := $(BUILD)/libcommon.a
PROGRAMS := $(addprefix $(BUILD)/,$(CHAPTERS))
UNIT_OBJECTS := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(sort $(filter-out tests/unit/comm_test.cpp tests/unit/stream_test.cpp,$(wildcard tests/unit/*.cpp))))
COMM_OBJECTS := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(wildcard tests/unit/comm_test.cpp tests/unit/stream_test.cpp))

.PHONY: all help $(CHAPTERS)
all: $(PROGRAMS) compile_commands.json  ## build all chapters of the chosen backend

$(CHAPTERS): %: $(BUILD)/%

help:  ## this text
	@grep -hE '^[a-z_%-]+:.*## ' Makefile | sed -E 's/^([^:]+):.*## /\1\t/' | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'
	@echo "  make 00_single_gpu    build one chapter ($(CHAPTERS))"

# ---- compiling -----------------------------------------------------------------------------------------------------------
$(BUILD)/obj/%.o: %.cpp Makefile
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) -MMD -MP -c $< -o $@

$(LIBRARY): $(COMMON_OBJECTS)
	@rm -f $@
	ar rcs $@ $^

$(PROGRAMS): $(BUILD)/%: $(BUILD)/obj/%/main.o $(LIBRARY)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -o $@

$(BUILD)/unit_test: $(UNIT_OBJECTS) $(LIBRARY)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -lgtest -lgtest_main -o $@

# Its main comes from comm_test.cpp, which has to finish MPI.
$(BUILD)/comm_test: $(COMM_OBJECTS) $(LIBRARY)
	$(CXX) $(CXXFLAGS) $^ $(LDLIBS) -lgtest -o $@

# For clangd: how each source is compiled.
SOURCES := $(wildcard common/*.cpp common/$(BACKEND)/*.cpp tests/*/*.cpp) $(CHAPTERS:%=%/main.cpp)
compile_commands.json: Makefile
	@{ echo '['; separator=; for source in $(SOURCES); do \
	    printf '%s{"directory": "$(CURDIR)", "file": "%s", "command": "$(CXX) $(CPPFLAGS) $(CXXFLAGS) -c %s"}\n' "$$separator" $$source $$source; \
	    separator=,; done; echo ']'; } > $@

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
