// Kernels whose threads race for shared memory, and their correct twins, each behind a function
// that launches it. If `correct`, the kernel has the barrier that it needs.
#pragma once

#include "core/tensor.h"

namespace ultrascale::test {

void launch_read_after_write(float* to, const float* from,
                             bool correct);  // the neighbour's value, in the next warp
void launch_write_after_read(float* to, const float* from,
                             bool correct);              // one buffer, filled twice
void launch_write_after_write(float* to, bool correct);  // two values in one place
void launch_write_of_the_same(float* to);
void launch_warp_reduction(float* to, const float* from, bool correct);  // __syncwarp
void launch_warp_reduction_by_shuffle(float* to, const float* from);  // a shuffle is no __syncwarp
void launch_neighbouring_bytes(float* to);
void launch_counter(int* to, bool correct);
void launch_across_warps_with_syncwarp(float* to, const float* from);
void launch_chain_of_syncwarps(float* to, bool correct);
void launch_many_readers(float* to, bool correct);
void launch_copied_structs(float* to, const float* from);
void launch_colliding_structs(
    float* to, const float* from);  // threads store different ones in one place; `from` must differ

}  // namespace ultrascale::test
