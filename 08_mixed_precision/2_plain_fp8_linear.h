// A linear whose three products multiply 8-bit numbers, with nothing else (--recipe plain-fp8).
//
//     forward             y  = x W^T      x (N, h), W (F, h) in e4m3        sums over h
//     input's gradient    dx = dy W       dy (N, F) in e5m2, W in e4m3      sums over F
//     weight's gradient   dW = dy^T x     dy in e5m2, x in e4m3             sums over tokens, N
//
// Tensor cores multiply 8-bit numbers twice as fast as 16-bit ones. But e4m3 ends at 448 and has
// only 0 below 2^-10 (1_formats.h), so each tensor is first brought into its range, by a number of
// its own, the scale:
//
//     x -> amax = largest |x| -> scale = amax / 448 -> round(x / scale) --+
//                                                                         +--> x' W'^T, sums in
//     W -> amax = largest |W| -> scale = amax / 448 -> round(W / scale) --+    fp32, times both
//                                                                              scales -> y, bf16
//
// By hand: the largest number of x is 7, so its scale is 7 / 448 = 1/64. There 0.1 is 6.4 scales.
// Between 4 and 8 e4m3's numbers are 1/2 apart, so 6.5 is kept, which stands for 0.1016.
//
// dy is e5m2, which ends at 57,344: gradients spread over more powers of two than activations do,
// and so need exponents more than mantissas.
//
// The scale is "current", that of the tensor as it is now, so every tensor is read twice: for its
// amax, and to be rounded. One outlier makes the scale large, and small numbers lose their bits.
//
// Tensor cores read 8-bit operands in rows along the dimension that is summed. So dx needs W
// transposed, and dW both dy and x; with one scale a tensor these are the same numbers.
//
// Linear (model/parts.h) does the rest, and in 16 bits: its forward calls multiply and keeps x; its
// backward calls multiply_backward, keeps dy, and with both calls add_weight_gradient. What is
// between the products (norms, attention, SwiGLU, the residual stream) stays in 16 bits, too: it
// adds up many numbers or divides by small ones, and is a small part of the time.
//
// Micikevicius et al. 2022, FP8 Formats for Deep Learning (arXiv 2209.05433).
#pragma once

#include "core/trace.h"
#include "kernels/ops_quantised.h"
#include "model/parts.h"

namespace ultrascale::mixed_precision {

class PlainFp8Linear : public Linear {
public:
    using Linear::Linear;

    // y = x W^T (+ residual). Tensor cores may keep this sum to its end, with 14 bits (`fast`);
    // those of the gradients move to fp32 now and then.
    void multiply(Tensor y, const Tensor& x, const Tensor& residual) override {
        const Tensor W = stacked_values(parameters_);
        ops::matmul_fp8(y, rounded(x, DType::e4m3), rounded(W, DType::e4m3), {.fast = true},
                        residual);
    }
    // dx = dy W
    void multiply_backward(Tensor dx, const Tensor& dy) override {
        const TraceName pass(TraceName::pass, "dX");
        const Tensor W = stacked_values(parameters_);
        ops::matmul_fp8(dx, rounded(dy, DType::e5m2), rounded_transposed(W, DType::e4m3), {});
    }
    // dW += dy^T x
    void add_weight_gradient(const Tensor& dy, const Tensor& x, Context& context) override {
        const TraceName pass(TraceName::pass, "dW");
        const Tensor before = begin_contributions(parameters_);  // of other micro-batches
        ops::matmul_fp8(stacked_grads(parameters_), rounded_transposed(dy, DType::e5m2),
                        rounded_transposed(x, DType::e4m3), {}, before);
        for (Parameter* parameter : parameters_) context.contributed(*parameter);
    }

protected:
    // x (R, C) in 8 bits, with its scale: (R, C).
    virtual ops::Quantised rounded(const Tensor& x, DType dtype) const {
        const ops::Quantised x8 = ops::empty_quantised(x.rows(), x.cols(), dtype,
                                                       ops::ScaleGroup::tensor, Memory::workspace);
        ops::quantise(x8, {}, x, {.group = ops::ScaleGroup::tensor});
        return x8;
    }
    // The same numbers, (C, R).
    virtual ops::Quantised rounded_transposed(const Tensor& x, DType dtype) const {
        const ops::Quantised x8 = ops::empty_quantised(x.cols(), x.rows(), dtype,
                                                       ops::ScaleGroup::tensor, Memory::workspace);
        ops::quantise({}, x8, x, {.group = ops::ScaleGroup::tensor});
        return x8;
    }
};

}  // namespace ultrascale::mixed_precision
