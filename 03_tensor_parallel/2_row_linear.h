// Rung 1, after 2_column_linear.h. A row linear is split by the rows of W in a product X W. These
// are the columns of our weight, which lies as (out, in). So rank r takes a part of the inputs,
// which is just what a column linear has left on it, and computes one summand of Y:
//
//     Y = X W^T      X = [ X_0 | X_1 ]    W = [ W_0 | W_1 ]      Y = X_0 W_0^T + X_1 W_1^T
//
//     forward    Y = sum over r of X_r W_r^T                     f*: all-reduce
//     backward   dY is on every rank (f*: nothing);  dX_r = dY W_r,  dW_r = dY^T X_r
//
// A feed-forward is a column linear, an activation, which works element by element, and a row
// linear: between them nothing is communicated. The residual is added after the sum, because before
// it each of the tp ranks would add it. In bf16 this also rounds it only once.
//
// On rung 2 the same row linear is followed by g* (4_sequence_parallel.h). Rung 3 sums Y in chunks
// (6_chunked_linear.h).
#pragma once

#include "1_parallel_region.h"
#include "core/ops.h"
#include "core/trace.h"

namespace ultrascale::tensor_parallel {

class RowLinear : public Linear {
public:
    // `gemm` is the plain Linear with the columns of W that this rank holds.
    RowLinear(std::unique_ptr<Linear> gemm, const ParallelRegion& region)
        : Linear(gemm->parameters()), gemm_(std::move(gemm)), region_(region) {}

    // exercise 03.2 begin: forward: Y = sum over r of X_r W_r^T; backward: dX_r = dY W_r
    // x is (B, T, this rank's inputs); the result has the residual stream's shape.
    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        const TraceName name(TraceName::part, name_);
        saved.keep("x", x);
        Tensor partial = region_.empty_partial({x.rows(), outputs()}, x.dtype());
        gemm_->multiply(partial, x);
        Tensor y =
            region_.leave(std::move(partial)).view(region_.stream_shape(context.batch, outputs()));
        if (residual) ops::add(y, residual);
        return y;
    }

    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        const TraceName name(TraceName::part, name_);
        const Tensor whole = region_.enter(dy);  // (B T, h)
        Tensor dx = empty_dx(dy.dtype(), context);
        gemm_->multiply_backward(dx, whole);
        saved.keep("dy", whole);
        return dx;
    }
    // exercise 03.2 end

    void backward_weight(Saved& saved, Context& context) override {
        gemm_->backward_weight(saved, context);  // as on one device
    }

protected:
    Tensor empty_dx(DType dtype, const Context& context) const {
        const int64_t B = context.batch.sequences(), T = context.batch.length();
        return Tensor::empty({B, T, inputs()}, dtype, Memory::activation);
    }

    std::unique_ptr<Linear> gemm_;
    const ParallelRegion& region_;
};

}  // namespace ultrascale::tensor_parallel
