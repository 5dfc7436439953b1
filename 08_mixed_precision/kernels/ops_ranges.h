// Operations that look at how large numbers are: for scales of columns, and to count what a format
// of few bits would lose. The conventions of core/ops.h hold here, too.
#pragma once

#include "core/tensor.h"

namespace ultrascale::ops {

// scales (C) fp32: for each column of x (R, C), the smallest power of two that no magnitude in it
// exceeds (1 for a column of zeros). inverses (C) fp32 = 1 / scales. Both are exact factors.
void column_scales(Tensor scales, Tensor inverses, const Tensor& x);
// y (R, C) = x (R, C) times the factor (C) fp32 of its column, + addend, which may be empty or y.
void scale_columns(Tensor y, const Tensor& x, const Tensor& factors, const Tensor& addend = {});

// count (1) int32 += how many numbers of x, e4m3 or e5m2, are the format's largest or -largest.
void count_saturated(Tensor count, const Tensor& x);
// counts (binades) int32 += a histogram of x (fp32, bf16 or fp16) by powers of two. [0] counts
// zeros; [1 + e] counts magnitudes with the fp32 exponent field e, from 2^(e - 127) to below 2^(e -
// 126). The first of these are fp32's subnormal numbers; the last are infinity and NaN.
inline constexpr int64_t binades = 257;
void count_binades(Tensor counts, const Tensor& x);

}  // namespace ultrascale::ops
