// Checks a kernel's output against float64, row by row. The inputs are random, and the output is
// filled with NaN before the kernel runs.
#pragma once

#include "kernel.h"

namespace ultrascale::kernels {

// Rounds x to the nearest fp8 number (e4m3: 3 bits of mantissa, exponents -6 .. 8, 448 at most;
// ties to even), and returns its byte.
uint8_t round_to_e4m3(float& x);

struct Trial {
    Arguments arguments;
    HostInputs inputs;
};
Trial make_trial(const Problem& problem, const Sizes& size, uint64_t seed);

// Rows of the right output in float64, computed once for all kernels: all rows, or 16 of them,
// including the first and the last.
struct Answer {
    std::vector<int64_t> rows;
    std::vector<double> values;  // row after row
};
Answer answer_of(const Problem& problem, const Trial& trial, bool all_rows);

// Fills the output with NaN, runs a kernel (ours or a library's), and returns the largest relative
// L2 error of a piece of a row: 256 columns, so that one large element cannot hide errors in the
// others. NaN: part of the output was not written, or is not a number.
double error_of(const std::function<void(const Arguments&)>& run, const Trial& trial,
                const Answer& answer);

// "" if the error is within the problem's tolerance; otherwise a description of the error at this
// size.
std::string verdict(const Problem& problem, const Sizes& size, double error);

std::string text(const Problem& problem, const Sizes& size);  // "rows 64, columns 512"

}  // namespace ultrascale::kernels
