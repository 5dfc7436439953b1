// Rung 1, after 2_column_linear.h: the row linear of 1_plain.h, whose border is a region's.
//
//     forward    Y = region.leave(X_r W_r^T)
//     backward   dY = region.enter(dy), all of it     dX_r = dY W_r,  dW_r = dY^T X_r
//
// The residual is added after the sum, because before it each of the tp ranks would add it. In bf16
// this also rounds it only once.
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
