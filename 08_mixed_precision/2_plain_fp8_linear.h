// A linear whose three products multiply 8-bit numbers, with nothing else (--recipe plain-fp8).
//
//     forward             y  = x W^T      x (N, h), W (F, h) in e4m3        sums over h
//     input's gradient    dx = dy W       dy (N, F) in e5m2, W in e4m3      sums over F
//     weight's gradient   dW = dy^T x     dy in e5m2, x in e4m3             sums over tokens, N
//
// Tensor cores multiply 8-bit numbers twice as fast as 16-bit ones. But e4m3 ends at 448, and what
// is below 2^-10 becomes 0 (1_formats.h). So each tensor is first divided by a number of its own,
// the scale, which brings it into e4m3's range:
//
//     x -> amax = largest |x| -> scale = amax / 448 -> round(x / scale) --+
//                                                                         +--> x' W'^T, sums in
//     W -> amax = largest |W| -> scale = amax / 448 -> round(W / scale) --+    fp32, times both
//                                                                              scales -> y, bf16
//
// By hand: if the largest number of x is 7, its scale is 7 / 448 = 1/64, and 0.1 becomes 0.1 * 64 =
// 6.4. Between 4 and 8 the numbers of e4m3 are 1/2 apart, so 6.4 is rounded to 6.5, which stands
// for 6.5 / 64 = 0.1016.
//
// dy is rounded to e5m2, which ends at 57,344: gradients spread over more powers of two than
// activations do, so they need bits of exponent more than bits of mantissa.
//
// The scale is "current": it is computed from the tensor as it is now. So every tensor is read
// twice, once for its amax and once to be rounded. A single outlier makes the scale large; the
// other numbers are then small, and lose bits or become 0.
//
// Tensor cores want both 8-bit operands in rows along the dimension that is summed: matmul_fp8(d,
// a, b) computes d = a b^T. Forward has this form already; dx needs W transposed, and dW needs both
// dy and x transposed. With one scale for the tensor, a transposed copy holds the same numbers.
//
// Linear (model/parts.h) does the rest, in 16 bits: its forward calls multiply() and keeps x; its
// backward calls multiply_backward(), keeps dy, and passes both to add_weight_gradient(). All that
// lies between the products (norms, attention, SwiGLU, the residual stream) stays in 16 bits, too:
// it adds up many numbers or divides by small ones, and takes a small part of the time.
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

    // y = x W^T (+ residual). With `fast`, tensor cores may keep the sum to its end in their own
    // accumulators, which have about 14 bits; fp32 has 24. The sums of the gradients move to fp32
    // now and then (accumulator.h shows the difference).
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
        const Tensor before = begin_contributions(parameters_);  // earlier micro-batches' sum
        ops::matmul_fp8(stacked_grads(parameters_), rounded_transposed(dy, DType::e5m2),
                        rounded_transposed(x, DType::e4m3), {}, before);
        for (Parameter* parameter : parameters_) context.contributed(*parameter);
    }

protected:
    // Returns x (R, C) in 8 bits, with its scale: (R, C). quantise() can write two results, one in
    // x's order and one transposed; here the second one is empty.
    virtual ops::Quantised rounded(const Tensor& x, DType dtype) const {
        const ops::Quantised x8 = ops::empty_quantised(x.rows(), x.cols(), dtype,
                                                       ops::ScaleGroup::tensor, Memory::workspace);
        ops::quantise(x8, {}, x, {.group = ops::ScaleGroup::tensor});
        return x8;
    }
    // Returns the same numbers transposed: (C, R).
    virtual ops::Quantised rounded_transposed(const Tensor& x, DType dtype) const {
        const ops::Quantised x8 = ops::empty_quantised(x.cols(), x.rows(), dtype,
                                                       ops::ScaleGroup::tensor, Memory::workspace);
        ops::quantise({}, x8, x, {.group = ops::ScaleGroup::tensor});
        return x8;
    }
};

}  // namespace ultrascale::mixed_precision
