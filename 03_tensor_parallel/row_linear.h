// A linear split by the rows of the book's X W, which are the columns of our weight (out, in):
// rank r has a part of the inputs, as a column linear's outputs are, and computes one summand of Y.
//
//     Y = X W^T      X = [ X_0 | X_1 ]    W = [ W_0 | W_1 ]      Y = X_0 W_0^T + X_1 W_1^T
//
//     forward    Y = sum over r of X_r W_r^T     f*: all-reduce (g*: reduce-scatter)
//     backward   dY from f* (or g*) on every rank;  dX_r = dY W_r,  dW_r = dY^T X_r: nothing to sum
//
// An MLP is a column linear, an activation that works element by element, and a row linear: between
// them nothing is communicated. A residual is added after the sum: once, not by every rank, and in
// bf16 it is rounded once.
#pragma once

#include "column_linear.h"
#include "core/ops.h"

namespace ultrascale {

class RowLinear : public Linear {
public:
    // `gemm` multiplies with the columns that this rank holds.
    RowLinear(std::unique_ptr<Linear> gemm, const Conjugates& border)
        : Linear(gemm->parameters()), gemm_(std::move(gemm)), border_(border) {}

    // x (B, T, this rank's inputs); returns the residual stream's shape.
    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        const TraceName name(TraceName::part, name_);
        const int64_t n = border_.chunks(x.rows());
        Outgoing sum = border_.begin_sum(border_.empty_partial({x.rows(), outputs()}, x.dtype()));
        for (int64_t c = 0; c < n; ++c) {
            gemm_->multiply(chunk_of(sum.partial, c, n), chunk_of(x, c, n));
            border_.sum_chunk(sum, c, n, n > 1);
        }
        saved.keep("x", x);
        Tensor y = sum.wait().view(border_.stream_shape(context.batch, outputs()));
        if (residual) ops::add(y, residual);
        return y;
    }

    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        const TraceName name(TraceName::part, name_);
        const int64_t B = context.batch.sequences(), T = context.batch.length();
        Incoming in = border_.gather(dy, border_.chunks(B * T) > 1);  // (B T, h)
        const int64_t n = in.count();
        Tensor dx = Tensor::empty({B, T, inputs()}, dy.dtype(), Memory::activation);
        for (int64_t c = 0; c < n; ++c) {
            in.wait(c);
            gemm_->multiply_backward(chunk_of(dx, c, n), chunk_of(in.whole, c, n));
        }
        saved.keep("dy", in.whole);
        return dx;
    }

    void backward_weight(Saved& saved, Context& context) override {
        const TraceName name(TraceName::part, name_);
        Tensor x = saved.take("x");  // (B, T, this rank's inputs)
        gemm_->add_weight_gradient(saved.take("dy"), x, context);
    }

private:
    std::unique_ptr<Linear> gemm_;
    const Conjugates& border_;
};

}  // namespace ultrascale
