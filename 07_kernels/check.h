// Is a kernel's output right? Against float64, row by row, with fresh random inputs and an output
// full of NaN.
#pragma once

#include "kernel.h"

namespace ultrascale::kernels {

// The fp8 number (e4m3: 3 bits of mantissa, exponents -6 .. 8) nearest to x, ties to even, and its
// byte. 448 is the largest.
uint8_t round_to_e4m3(float& x);

struct Trial {
    Arguments arguments;
    HostInputs inputs;
};
Trial make_trial(const Problem& problem, const Sizes& size, uint64_t seed);

// Rows of the output in float64, computed once for all kernels: all of them, or 16, the first and
// the last among them.
struct Answer {
    std::vector<int64_t> rows;
    std::vector<double> values;  // row after row
};
Answer answer_of(const Problem& problem, const Trial& trial, bool all_rows);

// Runs a kernel (or a library's) on a poisoned output; returns the largest relative L2 error of a
// piece of a row (256 columns: one large element must not hide what is wrong with the others). NaN:
// something was not written, or is not a number.
double error_of(const std::function<void(const Arguments&)>& run, const Trial& trial,
                const Answer& answer);

// "": the error is within the problem's tolerance. Else what is wrong at this size.
std::string verdict(const Problem& problem, const Sizes& size, double error);

std::string text(const Problem& problem, const Sizes& size);  // "rows 64, columns 512"

}  // namespace ultrascale::kernels
