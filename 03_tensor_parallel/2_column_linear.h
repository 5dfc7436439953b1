// Rung 1, after 1_parallel_region.h: the column linear of 1_plain.h, whose border is a region's.
//
//     forward    X = region.enter(x), all of it     Y_r = X W_r^T
//     backward   dX = region.leave(dY_r W_r)        dW_r = dY_r^T X needs no communication
//
// Go on to 2_row_linear.h. Rung 2 (4_sequence_parallel.h) gathers X first and reduce-scatters dX.
// Rung 3 hides dX's sum under dW (5_async_backward.h), and X's gather under Y's product
// (6_chunked_linear.h).
#pragma once

#include "1_parallel_region.h"
#include "core/trace.h"

namespace ultrascale::tensor_parallel {

class ColumnLinear : public Linear {
public:
    // `gemm` is the plain Linear of model/parts.h with the rows of W that this rank holds. It
    // multiplies; this class adds the communication. `saved` keeps what the backward needs. A
    // TraceName names in the timeline what is called in its lifetime.
    ColumnLinear(std::unique_ptr<Linear> gemm, const ParallelRegion& region)
        : Linear(gemm->parameters()), gemm_(std::move(gemm)), region_(region) {}

    // x has the residual stream's shape, the result (B, T, this rank's outputs).
    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        const TraceName name(TraceName::part, name_);
        check(!residual, "a column linear's output is in parts: it has no residual to add");
        const Tensor whole = region_.enter(x);  // (B T, h)
        Tensor y = empty_output(x.dtype(), context);
        gemm_->multiply(y, whole);
        saved.keep("x", whole);
        return y;
    }

    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        const TraceName name(TraceName::part, name_);
        saved.keep("dy", dy);
        return region_.leave(partial_dx(dy, context));
    }

    void backward_weight(Saved& saved, Context& context) override {
        gemm_->backward_weight(saved, context);  // as on one device
    }

protected:
    Tensor empty_output(DType dtype, const Context& context) const {
        const int64_t B = context.batch.sequences(), T = context.batch.length();
        return Tensor::empty({B, T, outputs()}, dtype, Memory::activation);
    }

    // Returns dY_r W_r, this rank's summand of dX.
    Tensor partial_dx(const Tensor& dy, const Context& context) const {
        const int64_t B = context.batch.sequences(), T = context.batch.length();
        Tensor partial = region_.empty_partial({B, T, inputs()}, dy.dtype());
        gemm_->multiply_backward(partial, dy);
        return partial;
    }

    std::unique_ptr<Linear> gemm_;
    const ParallelRegion& region_;
};

}  // namespace ultrascale::tensor_parallel
