// Measures kernels that are right: measure_gpu.cpp with a clock, observe_cpu.cpp with the microscope.
#pragma once

#include "ladder.h"

namespace ultrascale::kernels {

#ifdef ULTRASCALE_CUDA
inline constexpr bool on_gpu = true;
#else
inline constexpr bool on_gpu = false;
#endif

// Prints a table of the rungs at this size and fills their `seconds` or `traffic`; `wrong` if a large size or a race shows it.
void measure(const Problem& problem, const LadderOptions& options, const Sizes& size, std::vector<Rung>& rungs);

}  // namespace ultrascale::kernels
