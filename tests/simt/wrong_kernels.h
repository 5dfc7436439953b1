// Kernels for problems of 07_kernels, as a student may write them, for ladder_test.cpp. Those for
// "vector add" have different mistakes, and one for "cross-entropy" has one, too; others are right,
// but slow.
#pragma once

#include "07_kernels/problem.h"

namespace ultrascale::test {

using kernels::Arguments;
void run_right(const Arguments& args);
void run_wrong_sum(const Arguments& args);         // slightly wrong
void run_forgets_the_rest(const Arguments& args);  // the rest is the last block's
void run_writes_too_far(const Arguments& args);
void run_misses_a_barrier(const Arguments& args);
void run_reads_too_early(const Arguments& args);
void run_races(const Arguments& args);  // right on the CPU, which runs threads in order
void run_wrong_beside_the_target(
    const Arguments& args);  // the target's element, which is by far the largest, is right

// "transpose" through a tile of shared memory, with and without 32-way bank conflicts.
void run_transpose_conflicts(const Arguments& args);
void run_transpose_padded(const Arguments& args);
void run_sum_by_atomics(const Arguments& args);  // "sum", one atomic operation per element

}  // namespace ultrascale::test
