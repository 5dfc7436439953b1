// Kernels for the microscope's tests, each behind a function that launches it.
#pragma once

#include <cstdint>

#include "core/tensor.h"

namespace ultrascale::test {

// One warp per block; `to` and `from` have at least 64 elements for each thread.
void launch_copy_floats(float* to, const float* from, int count, int stride = 1, int offset = 0);
void launch_copy_bf16(bf16* to, const bf16* from, int count);
void launch_copy_float4(float* to, const float* from, int count);
void launch_sum_float4(float* to, const float* from, int count);
void launch_scale_packs(float* to, const float* from, int count);     // 4 floats each
void launch_scale_packs_bf16(bf16* to, const bf16* from, int count);  // 8 bf16 each
void launch_cached_loads(float* to, const float* from);
void launch_broadcast(float* to, const float* from);
void launch_some_lanes(float* to, const float* from);
void launch_read_modify_write(float* x);
void launch_different_trips(float* to, const float* from);
void launch_nested_trips(float* to, const float* from);
void launch_half_warps_apart(float* to, const float* from);
void launch_long_loop(float* to, const float* from, int turns, int blocks);
void launch_struct_of_three(float* to, const float* from);
void launch_unaligned_struct(float* to, const float* from);
void launch_atomics_of_each_kind(float* sum, int threads);

// 32 x 32 floats, 32 x 8 threads.
void launch_transpose_unpadded(float* to, const float* from);
void launch_transpose_padded(float* to, const float* from);
void launch_shared_patterns(float* to);
void launch_shared_float4(float* to);

}  // namespace ultrascale::test
