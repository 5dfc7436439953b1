// Rung 2, after column_linear.h and row_linear.h: sequence parallelism. Outside the linears each
// rank holds the residual stream, and computes the norms and the dropout, for 1/tp of the tokens. f
// and f* become g and g*:
//
//            (N/tp, h)                 (N, h)                (N, h)                    (N/tp, h)
//     forward    x ---- g: all-gather ------> column --> ... --> row --> g*: reduce-scatter --> y
//     backward   dx <-- g: reduce-scatter --- column <-- ... <-- row <-- g*: all-gather ------- dy
//
// An all-reduce is a reduce-scatter and an all-gather, so the network carries the same bytes as
// without; but norms' inputs and outputs, residuals and dropout take s b h / tp instead of s b h. A
// norm's weight now sees the tokens of its rank only: its gradient is summed over the ranks, once a
// step. A column linear needs its whole input once more for dW = dY^T X: it is not kept but
// gathered again (--keep-gathered on keeps it: one all-gather less a linear, N h more to hold).
// Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models".
//
// Which tokens? Row i of the (B, T, h) batch, read as N = B T rows, so that a shard is one range of
// memory and nothing is transposed (Megatron-LM lays its tensors out as (T, B, h) for the same
// purpose). Where a GEMM is cut into chunks of rows (rung 3) a rank has its share of every chunk,
// so that a chunk alone can be gathered and scattered; without, there is one chunk:
//
//     N rows, tp 2, 2 chunks    [ rank 0 | rank 1 ][ rank 0 | rank 1 ]
//                                    chunk 0             chunk 1
//     rank 0 holds its two ranges one after the other
#pragma once

#include "column_linear.h"

namespace ultrascale {

class SequenceParallelRegion : public ParallelRegion {
public:
    using ParallelRegion::ParallelRegion;

    // g forward, g* backward: all-gather.
    Pending begin_enter(const Tensor& x, Stream& stream) const override {
        const int64_t rows = x.rows() * group_.size(), n = chunks(rows);
        Pending whole{Tensor::empty({rows, x.cols()}, x.dtype(), Memory::activation,
                                    group_.symmetric_memory())};
        for (int64_t c = 0; c < n; ++c)
            whole.chunks.push_back(
                group_.all_gather(chunk_of(whole.result, c, n), chunk_of(x, c, n), stream));
        return whole;
    }

    // g* forward, g backward: reduce-scatter. It needs no symmetric memory: what is received lies
    // elsewhere.
    Tensor empty_partial(Shape shape, DType dtype) const override {
        return Tensor::empty(std::move(shape), dtype, Memory::activation);
    }
    Pending begin_leave(Tensor partial, Stream& stream) const override {
        const int64_t n = chunks(partial.rows());
        Pending sum{empty_sum(partial), std::move(partial)};
        for (int64_t c = 0; c < n; ++c)
            sum.chunks.push_back(
                sum_rows(chunk_of(sum.result, c, n), chunk_of(sum.partial, c, n), stream));
        return sum;
    }
    Tensor empty_sum(const Tensor& partial) const override {
        return Tensor::empty({partial.rows() / group_.size(), partial.cols()}, partial.dtype(),
                             Memory::activation);
    }
    Work sum_rows(Tensor sum, Tensor partial, Stream& stream) const override {
        return group_.reduce_scatter(sum, partial, Reduce::sum, stream);
    }

    bool gathers_again() const override { return !options_.keep_gathered; }
    Shape stream_shape(const Batch& batch, int64_t h) const override {
        return {batch.sequences() * batch.length() / group_.size(), h};
    }
    std::vector<TokenRange> tokens(int64_t rows) const override {
        const int64_t n = chunks(rows * group_.size()), count = rows / n;
        std::vector<TokenRange> ranges;
        for (int64_t c = 0; c < n; ++c)
            ranges.push_back({c * count, (c * group_.size() + group_.rank()) * count, count});
        return ranges;
    }
};

// A column linear that keeps its rank's shard of x, and gathers it again for dW.
class RegatheringColumnLinear : public ColumnLinear {
public:
    using ColumnLinear::ColumnLinear;

    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        Tensor y = ColumnLinear::forward(x, saved, context, residual);
        keep_input(x, saved);
        return y;
    }

    void backward_weight(Saved& saved, Context& context) override {
        const TraceName name(TraceName::part, name_);
        const Tensor x = whole_input(saved, compute_stream()).wait();
        gemm_->add_weight_gradient(saved.take("dy"), x, context);
    }

protected:
    // Instead of the whole input.
    void keep_input(const Tensor& x, Saved& saved) const {
        if (region_.gathers_again()) saved.keep("x", x);
    }
    Pending whole_input(Saved& saved, Stream& stream) const {
        Tensor kept = saved.take("x");
        return region_.gathers_again() ? region_.begin_enter(kept, stream) : Pending{kept};
    }
};

}  // namespace ultrascale
