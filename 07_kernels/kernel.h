// Every kernel's file includes this header: CUDA (or common/emulator's stand-in for it), and the
// list in which kernels are registered.
//
// A file holds one kernel, run(), which launches it, and a line that registers it:
//
//     const Registered here{"vector add", "one thread per element", run};
//
// The file's path gives its name and number: 1_first_steps/2_vector_add_grid_stride.cu is family 1,
// number 2, "vector_add_grid_stride".
#pragma once

#include <source_location>
#include <string>
#include <vector>

#include "cuda/cuda_common.h"
#include "problem.h"

namespace ultrascale::kernels {

enum class Needs { any_gpu, hopper };  // hopper: instructions of sm_90a

struct Kernel {
    int family, number;
    std::string name, problem;
    std::string idea;               // its idea, added to the kernel before it
    void (*run)(const Arguments&);  // nullptr: it needs PTX, which the CPU cannot run
    std::string file;               // 1_first_steps/1_vector_add.cu
    Needs needs = Needs::any_gpu;
};

class Registered {
public:
    Registered(const char* problem, const char* idea, void (*run)(const Arguments&),
               Needs needs = Needs::any_gpu,
               const std::source_location& at = std::source_location::current());
};

// A kernel that needs PTX, a GPU's own instructions, registers ON_GPU(run). If kernels run on the
// CPU, it is not compiled (#ifndef ULTRASCALE_SIMT) and has no run().
#ifdef ULTRASCALE_SIMT
#define ON_GPU(run) nullptr
#else
#define ON_GPU(run) run
#endif

const std::vector<Kernel>& all_kernels();       // by family and number
std::string why_skipped(const Kernel& kernel);  // what it needs and does not find; "": it runs

// The launches since the last call, for the primer.
struct LaunchNote {
    const void* kernel;
    std::string name;
    dim3 block;
    size_t shared_bytes;  // dynamic
};
void note_launch(const void* kernel, const char* name, dim3 block, size_t shared_bytes);
std::vector<LaunchNote> take_launches();

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

#if defined(__CUDACC__) || defined(ULTRASCALE_SIMT)
// In this chapter LAUNCH does what common/cuda's does, and notes the launch.
template <class... Parameters>
Launch<Parameters...> noted_launch(void (*kernel)(Parameters...), const char* name, dim3 grid,
                                   dim3 block, size_t shared_bytes, bool early = false) {
    note_launch(reinterpret_cast<const void*>(kernel), name, block, shared_bytes);
    return {kernel, grid, block, shared_bytes, early};
}
#endif

}  // namespace ultrascale::kernels

#undef LAUNCH
#define LAUNCH(kernel, grid, block, shared_bytes) \
    ::ultrascale::kernels::noted_launch(kernel, #kernel, grid, block, shared_bytes)
#undef LAUNCH_EARLY
#define LAUNCH_EARLY(kernel, grid, block, shared_bytes)                             \
    ::ultrascale::kernels::noted_launch(kernel, #kernel, grid, block, shared_bytes, \
                                        ::ultrascale::programmatic_launch())
