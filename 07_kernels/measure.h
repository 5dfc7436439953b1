// Measures the correct kernels: measure_gpu.cpp times them, observe_cpu.cpp counts their memory
// accesses with the microscope.
#pragma once

#include "ladder.h"

namespace ultrascale::kernels {

#ifdef ULTRASCALE_CUDA
inline constexpr bool on_gpu = true;
#else
inline constexpr bool on_gpu = false;
#endif

// Prints a table of the kernels at each of the sizes. Returns the results: `seconds`, or `traffic`
// and `seen`; and `wrong` if a large size or a race shows an error.
std::vector<KernelResult> measure(const Problem& problem, const LadderOptions& options,
                                  const std::vector<Sizes>& sizes,
                                  const std::vector<KernelResult>& right);

// Prints above a table what each of its kernels adds to the one before.
void print_ideas(const std::vector<KernelResult>& right);

// A race that may be why a kernel is wrong: "; race: 3_transpose_shared.cu:24 (store) and
// 3_transpose_shared.cu:29 (load)", or "" (on a GPU: always).
std::string races_of(const Kernel& kernel, const Trial& trial);

}  // namespace ultrascale::kernels
