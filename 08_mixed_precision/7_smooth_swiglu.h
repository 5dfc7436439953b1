// SwiGLU's outliers, and a cure (--smooth-swiglu). If some features are 2 x 10^5 times as large as
// the others, the others' part of down_proj's result is off by 7.7 % with one scale a tensor, but
// by 3.7 % if smoothed (--demo swiglu).
//
// silu(gate) * up is a product of two linear functions of the same x. If their two rows of weights
// point the same way, as they tend to after long training, the product grows with the square of x:
// a few features become thousands of times as large as the others. With one scale for the whole
// tensor the others then vanish in fp8, and training in fp8 diverges after hundreds of billions of
// tokens.
//
// Smooth-SwiGLU divides each feature by a number of its own before it is rounded, and multiplies
// the matching column of down_proj's weight by the same number:
//
//     y = (a / s) (W s)^T        s: a feature's largest magnitude, rounded to a power of two so
//                                   that the division is exact
//
// In the backward dW = dy^T (a / s), multiplied by s.
//
// Fishman et al. 2024, Scaling FP8 training to trillion-token LLMs (arXiv 2409.12517).
#pragma once

#include "core/ops.h"
#include "core/trace.h"
#include "kernels/ops_quantised.h"
#include "kernels/ops_ranges.h"
#include "model/parts.h"
#include "precision_options.h"

namespace ultrascale::mixed_precision {

// down_proj, whose input is smoothed.
class SmoothLinear : public Linear {
public:
    SmoothLinear(std::vector<Parameter*> rows, const PrecisionOptions& options)
        : Linear(std::move(rows)), options_(options) {}

    void multiply(Tensor y, const Tensor& x, const Tensor& residual) override {
        const Smoothed s = smoothed(x);
        const Tensor weight = stacked_values(parameters_),
                     scaled = Tensor::empty(weight.shape(), weight.dtype(), Memory::workspace);
        ops::scale_columns(scaled, weight, s.scales);
        ops::matmul_fp8(y, rounded(s.x, DType::e4m3, false), rounded(scaled, DType::e4m3, false),
                        {.fast = options_.fast_forward()}, residual);
    }
    void multiply_backward(Tensor dx, const Tensor& dy) override {
        const TraceName pass(TraceName::pass, "dX");
        ops::matmul_fp8(dx, rounded(dy, options_.gradient_format, false),
                        rounded(stacked_values(parameters_), DType::e4m3, true),
                        {.fast = options_.fast_backward()});
    }
    void add_weight_gradient(const Tensor& dy, const Tensor& x, Context& context) override {
        const TraceName pass(TraceName::pass, "dW");
        const Smoothed s = smoothed(x);
        const Tensor smoothed_dw =
            Tensor::empty({outputs(), inputs()}, DType::fp32, Memory::workspace);
        ops::matmul_fp8(smoothed_dw, rounded(dy, options_.gradient_format, true),
                        rounded(s.x, DType::e4m3, true), {.fast = options_.fast_backward()});
        ops::scale_columns(stacked_grads(parameters_), smoothed_dw, s.scales,
                           begin_contributions(parameters_));
        for (Parameter* parameter : parameters_) context.contributed(*parameter);
    }

private:
    struct Smoothed {
        Tensor x, scales;  // x divided by the scales of its columns
    };
    static Smoothed smoothed(const Tensor& x) {
        Smoothed s{Tensor::empty(x.shape(), x.dtype(), Memory::workspace),
                   Tensor::empty({x.cols()}, DType::fp32, Memory::workspace)};
        const Tensor inverses = Tensor::empty({x.cols()}, DType::fp32, Memory::workspace);
        ops::column_scales(s.scales, inverses, x);
        ops::scale_columns(s.x, x, inverses);
        return s;
    }
    static ops::Quantised rounded(const Tensor& x, DType dtype, bool transposed) {
        const int64_t r = x.rows(), c = x.cols();
        const ops::Quantised q = ops::empty_quantised(transposed ? c : r, transposed ? r : c, dtype,
                                                      ops::ScaleGroup::tensor, Memory::workspace);
        ops::quantise(transposed ? ops::Quantised{} : q, transposed ? q : ops::Quantised{}, x, {});
        return q;
    }

    PrecisionOptions options_;
};

}  // namespace ultrascale::mixed_precision
