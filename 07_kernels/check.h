// Is a kernel's output right? Against float64, row by row, with fresh random inputs and an output full of NaN.
#pragma once

#include "kernel.h"

namespace ultrascale::kernels {

struct Trial {
    Arguments arguments;
    HostInputs inputs;
};
Trial make_trial(const Problem& problem, const Sizes& size, uint64_t seed);

// Runs the kernel on a poisoned output; returns the largest relative L2 error of a row. Of a timed size 16 rows are looked at, the first
// and the last among them, else all. NaN or infinity: something was not written, or not a number.
double error_of(const Problem& problem, const Kernel& kernel, const Trial& trial, bool all_rows);

std::string text(const Problem& problem, const Sizes& size);  // "rows 64, columns 512"

}  // namespace ultrascale::kernels
