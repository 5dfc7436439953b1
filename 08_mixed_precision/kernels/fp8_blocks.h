// The product of 8-bit matrices with scales for tiles and blocks, on Hopper's tensor cores. Private
// to this folder, and the last of the fp8 kernels in 07_kernels/6_hopper.
#pragma once

#include "core/tensor.h"

namespace ultrascale::ops {

// a (M, K), b (N, K): rows begin `stride` bytes apart, a multiple of 16. scales_a (K / 128, M).
// scales_b belong to blocks (N / 128, b_scale_stride), or to tiles (K / 128, N); then N is a
// multiple of 4. a is e4m3 or e5m2, b is e4m3.
struct Fp8Blocks {
    int64_t M, N, K;
    const void *a, *b;
    int64_t a_stride, b_stride;
    const float *scales_a, *scales_b;
    int64_t b_scale_stride;
    bool a_e5m2 = false;
};
// d (M, N), bf16 or fp32, = the product (+ addend, of d's shape and dtype, which may be d itself).
void fp8_blocks_wgmma(const Tensor& d, const Fp8Blocks& product, bool b_tiles,
                      const Tensor& addend = {});

}  // namespace ultrascale::ops
