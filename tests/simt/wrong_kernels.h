// Kernels for the problem "vector add" of 07_kernels, each with another mistake, and one for "cross-entropy"; for ladder_test.cpp.
#pragma once

#include "07_kernels/problem.h"

namespace ultrascale::test {

using kernels::Arguments;
void run_right(const Arguments& args);
void run_wrong_sum(const Arguments& args);         // a little
void run_forgets_the_rest(const Arguments& args);  // of the last block
void run_writes_too_far(const Arguments& args);
void run_misses_a_barrier(const Arguments& args);
void run_reads_too_early(const Arguments& args);
void run_races(const Arguments& args);                    // right on the executor, which runs threads in order
void run_wrong_beside_the_target(const Arguments& args);  // the target's element, which is by far the largest, is right

}  // namespace ultrascale::test
