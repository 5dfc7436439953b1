// Rung 2, after 2_column_linear.h and 2_row_linear.h, is sequence parallelism. Outside the regions
// each rank holds the residual stream, and computes the norms and the dropout, for 1/tp of the
// tokens only. With inputs kept, as many bytes are sent as before, and of 18.5 MiB of activations
// 1.9 are saved on two ranks (README.md). f and f* become g and g*:
//
//            (N/tp, h)                 (N, h)                (N, h)                    (N/tp, h)
//     forward    x ---- g: all-gather ------> column --> ... --> row --> g*: reduce-scatter --> y
//     backward   dx <-- g: reduce-scatter --- column <-- ... <-- row <-- g*: all-gather ------- dy
//
// An all-reduce is a reduce-scatter and an all-gather, so g and g* together send the same bytes as
// f*; but the inputs and outputs of norms, residuals and dropout take s b h / tp instead of s b h.
// This has two costs. A norm's weight sees only the tokens of its rank, so its gradient is summed
// over the ranks once a step. And a column linear needs its whole input once more for dW = dY^T X:
// it is gathered a second time instead of being kept, which sends half an all-reduce more for each
// column linear. --keep-gathered on keeps it instead, for N h more elements of memory each.
// Korthikanti et al. 2022, "Reducing activation recomputation in large transformer models".
//
// Which tokens does a rank hold? The (B, T, h) batch is read as N = B T rows, and rank r holds the
// r-th of tp equal ranges of them: contiguous memory, so that nothing needs to be transposed.
// (Megatron-LM lays its tensors out as (T, B, h) for the same purpose.) If a GEMM is cut into
// chunks of rows (rung 3), each chunk is divided in this way, so that it can be gathered and
// scattered on its own:
//
//     N rows, tp 2, 2 chunks    [ rank 0 | rank 1 ][ rank 0 | rank 1 ]
//                                    chunk 0             chunk 1
//     rank 0 holds its two ranges one after the other
#pragma once

#include "2_column_linear.h"

namespace ultrascale::tensor_parallel {

class SequenceParallelRegion : public ParallelRegion {
public:
    using ParallelRegion::ParallelRegion;

    // exercise 03.4 begin: g gathers the tokens, g* adds up and scatters them; chunk by chunk
    // g in forward, g* in backward: an all-gather.
    Pending begin_enter(const Tensor& x, Stream& stream) const override {
        const int64_t rows = x.rows() * group_.size(), n = chunks(rows);
        Pending whole{Tensor::empty({rows, x.cols()}, x.dtype(), Memory::activation,
                                    group_.symmetric_memory())};
        for (int64_t c = 0; c < n; ++c)
            whole.chunks.push_back(
                group_.all_gather(chunk_of(whole.result, c, n), chunk_of(x, c, n), stream));
        return whole;
    }

    // g* in forward, g in backward: a reduce-scatter. Its input needs no symmetric memory
    // (comm/comm.h), because no other rank writes into it.
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
    // exercise 03.4 end

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

// A column linear that keeps only its rank's shard of x, and gathers the whole x again for dW.
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
    // Replaces the whole input, which the caller has just kept as "x", by this rank's shard.
    void keep_input(const Tensor& x, Saved& saved) const {
        if (region_.gathers_again()) saved.keep("x", x);
    }
    Pending whole_input(Saved& saved, Stream& stream) const {
        Tensor kept = saved.take("x");
        return region_.gathers_again() ? region_.begin_enter(kept, stream) : Pending{kept};
    }
};

}  // namespace ultrascale::tensor_parallel
