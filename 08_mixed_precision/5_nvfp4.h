// NVFP4: numbers of 4 bits, and what it takes to train with them (--recipe nvfp4).
//
// e2m1 has 8 magnitudes: 0, 0.5, 1, 1.5, 2, 3, 4, 6. Blocks are half as long as in MXFP8
// (5_mx_blocks.h), and their scales have a mantissa, so that amax (the block's largest |x|) is
// about 6 scales, and not anything from 3 to 6. But such a scale, e4m3, has little range, so the
// tensor has one, too:
//
//     value = e2m1 * scale of 16 (e4m3) * scale of the tensor (fp32)         4 + 8/16 = 4.5 bits
//     tensor's scale = amax / (6 * 448)       block's scale = its amax / 6 / tensor's, rounded
//
// By hand, with a tensor's scale of 1: a block whose amax is 7 has the scale 7 / 6, rounded to
// 1.125. So 7 is 6.22 scales and becomes 6 of them, 6.75; 2 is 1.78 and becomes 2 of them, 2.25. A
// product of normally distributed numbers is 13 % off (mxfp8's: 4 %). The published recipe has four
// tricks; --without NAME omits one:
//
//     hadamard      dW = dy^T x sums over tokens. Before rounding, H multiplies each 16 tokens of
//                   both: an orthogonal matrix (16, 16) of 1/4 and -1/4, whose signs are drawn at
//                   random. So (H dy)^T (H x) = dy^T x. What the 16 have in common ends in few
//                   numbers, which lowers the error; but one outlier ends in all, (0, 8, 0, ..) ->
//                   (2, -2, 2, ..), which may raise it. It depends on the data (MEASURED.md).
//     stochastic    dy is rounded stochastically (8_stochastic_rounding.h). To nearest, all that is
//                   below a quarter of the scale becomes 0 in every step: a bias that adds up.
//     square        W's blocks are 16 x 16. Then W has the same numbers in forward (rows) and in
//                   backward (columns), so that dx is the gradient of the y that was computed.
//     last-layers   the linears of the last layers (15 %, rounded up) stay in bf16.
//
//     y  = x W^T     x: along h               W: squares
//     dx = dy W      dy: along F, random      W: the same
//     dW = dy^T x    dy: down tokens, H, random       x: down tokens, H
//
// The products are emulated as MXFP8's are; tensors' scales multiply the sums, in fp32. A random
// number belongs to an element of dy, (token of the run, feature), whichever rank has it.
//
// NVIDIA 2025, Pretraining Large Language Models with NVFP4 (arXiv 2509.25149).
#pragma once

#include "3_recipes.h"
#include "core/trace.h"
#include "kernels/ops_blocks.h"
#include "kernels/ops_ranges.h"
#include "model/parts.h"

namespace ultrascale::mixed_precision {

class Nvfp4Linear : public Linear {
public:
    Nvfp4Linear(std::vector<Parameter*> rows, const Nvfp4Tricks& tricks, uint64_t seed)
        : Linear(std::move(rows)), tricks_(tricks), seed_(seed) {
        if (tricks.hadamard) signs_ = Random(seed, "hadamard").bits(0) & 0xffff;
    }

    // y = x W^T (+ residual)
    void multiply(Tensor y, const Tensor& x, const Tensor& residual) override {
        product(y, rounded(x, {.shape = along}), no, rounded(weights(), {.shape = w(along)}), yes,
                residual);
    }
    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        token_ = first_token(context);
        return Linear::backward_input(dy, saved, context);
    }
    // dx = dy W
    void multiply_backward(Tensor dx, const Tensor& dy) override {
        const TraceName pass(TraceName::pass, "dX");
        product(dx, rounded(dy, random({.shape = along}, "dX", token_)), no,
                rounded(weights(), {.shape = w(down)}), no);
    }
    // dW += dy^T x
    void add_weight_gradient(const Tensor& dy, const Tensor& x, Context& context) override {
        const TraceName pass(TraceName::pass, "dW");
        const Tensor before = begin_contributions(parameters_);  // earlier micro-batches' sum
        const ops::BlockRounding turned{.shape = down, .hadamard = signs_};
        product(stacked_grads(parameters_), rounded(dy, random(turned, "dW", first_token(context))),
                yes, rounded(x, turned), no, before);
        for (Parameter* parameter : parameters_) context.contributed(*parameter);
    }

protected:
    // A matrix (R, C), and the scale (1) by which it must be multiplied.
    struct Numbers {
        Tensor values, scale;
    };
    virtual Numbers rounded(const Tensor& x, ops::BlockRounding how) const {
        how.format = ops::BlockFormat::nvfp4;
        const Numbers y{Tensor::empty({x.rows(), x.cols()}, DType::bf16, Memory::workspace),
                        Tensor::empty({1}, DType::fp32, Memory::workspace)};
        ops::round_blocks(y.values, x, how, y.scale);
        return y;
    }

private:
    static constexpr auto along = ops::BlockShape::row, down = ops::BlockShape::column;
    static constexpr auto no = ops::Transpose::no, yes = ops::Transpose::yes;

    static uint64_t first_token(const Context& c) {
        return uint64_t(c.batch.first_sample * c.batch.sample_length());
    }
    Tensor weights() const { return stacked_values(parameters_); }
    ops::BlockShape w(ops::BlockShape otherwise) const {
        return tricks_.square ? ops::BlockShape::square : otherwise;
    }
    ops::BlockRounding random(ops::BlockRounding how, const char* product, uint64_t token) const {
        if (!tricks_.stochastic) return how;
        how.random = Random(seed_, fmt::format("{}.{}", product, parameters_.front()->name));
        how.first = token * uint64_t(outputs());
        return how;
    }
    // d = op(a) op(b) * both scales + addend
    static void product(Tensor d, const Numbers& a, ops::Transpose ta, const Numbers& b,
                        ops::Transpose tb, const Tensor& addend = {}) {
        const Tensor sums = Tensor::empty(d.shape(), DType::fp32, Memory::workspace),
                     scale = Tensor::empty({1}, DType::fp32, Memory::workspace);
        ops::matmul(sums, a.values, ta, b.values, tb);
        ops::scale_columns(scale, a.scale, b.scale);
        const Shape list{d.numel(), 1};  // a column, which has one factor
        ops::scale_columns(d.view(list), sums.view(list), scale,
                           addend ? addend.view(list) : Tensor());
    }

    Nvfp4Tricks tricks_;
    uint64_t seed_, token_ = 0;
    std::optional<uint32_t> signs_;
};

}  // namespace ultrascale::mixed_precision
