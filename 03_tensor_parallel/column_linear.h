// A linear split by the columns of the book's X W, which are the rows of our weight (out, in): rank
// r computes its part of the outputs.
//
//     Y = X W^T        W = [ W_0 ]  rank 0        [ Y_0 | Y_1 ] = [ X W_0^T | X W_1^T ]
//                          [ W_1 ]  rank 1        each rank needs all of X
//
//     forward    X from f (or g) on every rank;  Y_r = X W_r^T
//     backward   dX = sum over r of dY_r W_r     f: all-reduce (g: reduce-scatter)
//                dW_r = dY_r^T X                 needs no communication, and hides dX's (overlap.h)
#pragma once

#include "conjugates.h"
#include "core/trace.h"

namespace ultrascale {

class ColumnLinear : public Linear {
public:
    // `gemm` multiplies with the rows that this rank holds.
    ColumnLinear(std::unique_ptr<Linear> gemm, const Conjugates& border)
        : Linear(gemm->parameters()), gemm_(std::move(gemm)), border_(border) {}

    // x: the residual stream's shape; returns (B, T, this rank's outputs).
    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        const TraceName name(TraceName::part, name_);
        check(!residual, "a column linear's output is in parts: it has no residual to add");
        const int64_t B = context.batch.sequences(), T = context.batch.length();
        Incoming in = border_.gather(x, border_.chunks(B * T) > 1);  // (B T, h)
        const int64_t n = in.count();
        Tensor y = Tensor::empty({B, T, outputs()}, x.dtype(), Memory::activation);
        for (int64_t c = 0; c < n; ++c) {
            in.wait(c);
            gemm_->multiply(chunk_of(y, c, n), chunk_of(in.whole, c, n));
        }
        saved.keep("x", border_.gathers_again() ? x : in.whole);
        return y;
    }

    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        const TraceName name(TraceName::part, name_);
        saved.keep("dy", dy);
        return sum_of_dx(dy, false, context).wait();
    }

    void backward_weight(Saved& saved, Context& context) override {
        const TraceName name(TraceName::part, name_);
        Incoming x = whole_input(saved, false);
        gemm_->add_weight_gradient(saved.take("dy"), x.wait(), context);
    }

    Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                    WeightGradient when) override {
        if (when == WeightGradient::later || !border_.backward_overlaps())
            return Linear::backward(dy, saved, context, when);
        const TraceName name(TraceName::part, name_);
        Incoming x = whole_input(saved, true);       // under dX's GEMM
        Outgoing dx = sum_of_dx(dy, true, context);  // under dW's GEMM
        gemm_->add_weight_gradient(dy, x.wait(), context);
        x = {};
        return dx.wait();
    }

private:
    Incoming whole_input(Saved& saved, bool beside) const {
        return border_.gather_again(saved.take("x"), beside);
    }

    Outgoing sum_of_dx(const Tensor& dy, bool beside, const Context& context) const {
        const int64_t B = context.batch.sequences(), T = context.batch.length();
        Tensor partial = border_.empty_partial({B, T, inputs()}, dy.dtype());
        gemm_->multiply_backward(partial, dy);
        return border_.sum(std::move(partial), beside);
    }

    std::unique_ptr<Linear> gemm_;
    const Conjugates& border_;
};

}  // namespace ultrascale
