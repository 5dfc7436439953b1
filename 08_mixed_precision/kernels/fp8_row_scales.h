// Applies the scales of rows to a product. Private to this folder.
#pragma once

#include "core/tensor.h"

namespace ultrascale::ops {

// d (M, N) = scales_a(m) scales_b(n) sums(m, n) (+ addend, of d's shape and dtype, which may be d
// itself). d is fp32, bf16 or fp16; sums is fp32.
void apply_row_scales(const Tensor& d, const Tensor& sums, const Tensor& scales_a,
                      const Tensor& scales_b, const Tensor& addend);

}  // namespace ultrascale::ops
