// MXFP8: each 32 neighbours have a scale of their own, a power of two (--recipe mxfp8).
//
// A tile of DeepSeek's (5_tiles.h) has 128 numbers and a scale in fp32, by which CUDA cores
// multiply partial sums. Blackwell's tensor cores read the scales themselves, so blocks can be
// small: an outlier spoils 31 numbers. A scale takes a byte, e8m0, an exponent and nothing else:
//
//     x      | 32 numbers, e4m3 | 32 numbers, e4m3 | ...      value = number * 2^(byte - 127)
//     scale  |   byte (e8m0)    |   byte (e8m0)    |          8 + 8/32 = 8.25 bits a number
//
// Which power of two? With the standard's rule (OCP's, see the end) the block's largest |x|, amax,
// is at least 256 and less than 512 times the scale; but e4m3 ends at 448, and what is above
// saturates. By hand: amax = 500 has the scale 2^(floor(log2 500) - 8) = 1, so it becomes 448, 10 %
// too small. NVIDIA doubles the scale in this case: 500 is 250 * 2 and becomes 256 * 2, 2 % off.
// That costs nothing in precision, because a power of two moves only the exponent, but small
// numbers become subnormal earlier. Of blocks of normally distributed numbers 17 % saturate with
// OCP's rule, and a product's error is 4.17 % rather than 3.75 % (--demo blocks). So the recipe
// rounds up; --without up does not.
//
// Blocks lie along the dimension that a product sums over, as tiles do, and each tensor has a part
// in two products. So each is rounded twice, from bf16, with blocks along rows and down columns:
//
//     y  = x W^T     x: along h         W: along h
//     dx = dy W      dy: along F        W: down F
//     dW = dy^T x    dy: down tokens    x: down tokens
//
// So x and W are rounded to other numbers in backward than in forward. With blocks this small even
// gradients do not need e5m2's range: all numbers are e4m3.
//
// Nothing here is faster, since these numbers are emulated: ops::round_blocks() writes number *
// scale in bf16, exactly, and an ordinary product multiplies (kernels/ops_blocks.h says why that is
// what a Blackwell GPU computes). x and dy, too, are kept in bf16, not yet rounded.
//
// OCP Microscaling Formats 1.0; Mishra et al. 2025, Recipes for Pre-training LLMs with MXFP8 (arXiv
// 2506.08027).
#pragma once

#include "core/trace.h"
#include "kernels/ops_blocks.h"
#include "model/parts.h"

namespace ultrascale::mixed_precision {

class MxLinear : public Linear {
public:
    // gradients: dy's format; x and W are e4m3. round_up: NVIDIA's rule; false: OCP's.
    MxLinear(std::vector<Parameter*> rows, DType gradients, bool round_up)
        : Linear(std::move(rows)),
          gradients_(gradients == DType::e5m2 ? ops::BlockFormat::mx_e5m2
                                              : ops::BlockFormat::mx_e4m3),
          round_up_(round_up) {}

    // y = x W^T (+ residual)
    void multiply(Tensor y, const Tensor& x, const Tensor& residual) override {
        const Tensor W = stacked_values(parameters_);
        ops::matmul(y, rounded(x, along, numbers), no, rounded(W, along, numbers), yes, residual);
    }
    // dx = dy W
    void multiply_backward(Tensor dx, const Tensor& dy) override {
        const TraceName pass(TraceName::pass, "dX");
        const Tensor W = stacked_values(parameters_);
        ops::matmul(dx, rounded(dy, along, gradients_), no, rounded(W, down, numbers), no);
    }
    // dW += dy^T x
    void add_weight_gradient(const Tensor& dy, const Tensor& x, Context& context) override {
        const TraceName pass(TraceName::pass, "dW");
        const Tensor before = begin_contributions(parameters_);  // earlier micro-batches' sum
        ops::matmul(stacked_grads(parameters_), rounded(dy, down, gradients_), yes,
                    rounded(x, down, numbers), no, before);
        for (Parameter* parameter : parameters_) context.contributed(*parameter);
    }

protected:
    static constexpr auto along = ops::BlockShape::row, down = ops::BlockShape::column;
    static constexpr auto numbers = ops::BlockFormat::mx_e4m3;
    static constexpr auto no = ops::Transpose::no, yes = ops::Transpose::yes;

    // Returns x (R, C) in the order it has, bf16: each number times its block's scale.
    virtual Tensor rounded(const Tensor& x, ops::BlockShape shape, ops::BlockFormat format) const {
        const Tensor y = Tensor::empty({x.rows(), x.cols()}, DType::bf16, Memory::workspace);
        ops::round_blocks(y, x, {.format = format, .shape = shape, .round_up = round_up_});
        return y;
    }

private:
    ops::BlockFormat gradients_;
    bool round_up_;
};

}  // namespace ultrascale::mixed_precision
