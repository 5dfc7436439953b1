// Matrices of 8-bit numbers: how they are quantised and converted back. ops.h's conventions hold
// here, too. Chapter 08 multiplies such matrices.
//
//     x  ~  scale * number        number: e4m3 or e5m2, rounded to nearest even and saturated
//                                 scale: fp32, one for each group of elements of x
//
// A scale is the group's largest magnitude (its "amax") divided by the format's largest number, 448
// or 57,344. A NaN stays NaN, and a group with an infinity becomes NaN, so that no overflow is
// hidden. Groups of a matrix (R, C):
//
//     tensor    1 scale                       (1)                   Transformer Engine
//     row       of each row                   (R)                   torchao's "rowwise"
//     tile      of 1 x 128 in a row           (ceil(C / 128), R)    DeepSeek-V3: activations
//     block     of 128 x 128                  (ceil(R / 128), ceil(C / 128))   its weights
//
// Micikevicius et al. 2022 (arXiv 2209.05433); DeepSeek-V3 Technical Report, section 3.3 (arXiv
// 2412.19437).
#pragma once

#include "tensor.h"

namespace ultrascale::ops {

enum class ScaleGroup { tensor, row, tile, block };
inline constexpr int64_t scale_block = 128;

struct Scaling {
    ScaleGroup group = ScaleGroup::tensor;
    // A scale is rounded up to a power of two: multiplying by it is then exact.
    bool powers_of_two = false;
    // Delayed scaling (group tensor): the scale is an input, from the history of amax, so that x
    // is read only once. Larger numbers saturate.
    bool given = false;
};

// A matrix in 8 bits with its scales. It is empty where nobody needs it.
struct Quantised {
    Tensor values;  // (R, C) e4m3 or e5m2
    Tensor scales;  // fp32, see above
    explicit operator bool() const { return bool(values); }
};
Shape scales_shape(int64_t rows, int64_t cols, ScaleGroup group);
// Allocates an uninitialised matrix; both of its tensors belong to this category.
Quantised empty_quantised(int64_t rows, int64_t cols, DType dtype, ScaleGroup group,
                          Memory category);
// The largest number of e4m3 or e5m2.
float largest_of(DType dtype);

// Writes x (R, C), which is fp32, bf16 or fp16, to y (R, C) and to transposed (C, R); one of them
// may be empty. It takes one pass over x if the scale is given, and for tiles and blocks; other
// groups need a pass before it that finds the amax. If y and transposed share one scale (given),
// they share its tensor, too. amax (1) fp32, unless it is empty, becomes the largest magnitude of x
// if that is larger: the caller zeroes it before the first of several micro-batches.
void quantise(const Quantised& y, const Quantised& transposed, const Tensor& x,
              const Scaling& scaling, Tensor amax = {});
// x (R, C) fp32, bf16 or fp16 = scale * number
void dequantise(Tensor x, const Quantised& y, ScaleGroup group);

}  // namespace ultrascale::ops
