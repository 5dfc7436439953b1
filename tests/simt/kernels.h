// Kernels for simt_test.cpp, each behind a function that launches it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ultrascale::test {

void launch_indices(int* out, int grid_x, int grid_y, int block_x, int block_y, int block_z);
void launch_block_sums(float* sums, const float* x, int count,
                       int blocks);     // 128 threads per block, static and dynamic shared memory
void launch_warp_operations(int* out);  // 32 threads, 8 results each
void launch_half_warps(int* out);
void launch_atomics(int* counter, float* sum, int blocks);

void launch_barrier_that_half_the_block_misses();
void launch_barrier_after_threads_have_ended();
void launch_shuffle_that_a_lane_misses();
void launch_shuffle_of_different_kinds();
void launch_mask_without_its_caller();
void launch_shuffle_from_outside_the_mask(int* out);
void launch_copy(float* to, const float* from,
                 int count);  // out of bounds if count is too large
void launch_write_past_shared_memory(int floats);
void launch_write_past_shared_array(int floats);  // the array has 32 floats
void launch_another_array(int* out);              // 32 threads, the array in reverse
// 32 threads; the odd ones' results come from shared memory that nobody has written.
void launch_unwritten(float* out, int blocks);
void launch_read_null();
void launch_too_many_threads();
void launch_vectors(float* to, const float* from);  // reads 8 float4, writes 8 float2
using Size = std::array<unsigned, 3>;
void launch_nothing(Size grid, Size block, size_t shared_bytes);

}  // namespace ultrascale::test
