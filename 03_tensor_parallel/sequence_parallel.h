// Sequence parallelism: outside the linears each rank holds the residual stream, and computes the
// norms and the dropout, for 1/tp of the tokens. f and f* become g and g*:
//
//     forward    x (N/tp, h) -- g: all-gather -----> x (N, h) -> column ... row -> (N, h) -- g*: reduce-scatter --> y (N/tp, h)
//     backward  dx (N/tp, h) <- g: reduce-scatter -- (N, h)  <- column ... row <-- (N, h) <- g*: all-gather ------ dy (N/tp, h)
//
// An all-reduce is a reduce-scatter and an all-gather, so the network carries the same bytes as
// without; but norms' inputs and outputs, residuals and dropout take s b h / tp instead of s b h. A
// norm's weight now sees the tokens of its rank only: its gradient is summed over the ranks, once a
// step. A column linear needs its whole input once more for dW = dY^T X: it is not kept but
// gathered again
// (--keep-gathered on keeps it: one all-gather less a linear, N h more to hold). Korthikanti et al.
// 2022, "Reducing activation
// recomputation in large transformer models".
//
// Which tokens? Row i of the (B, T, h) batch, read as N = B T rows, so that a shard is one stretch
// of memory and nothing is transposed (Megatron-LM lays its tensors out as (T, B, h) for the same
// purpose). Where a GEMM is cut into chunks of rows (overlap.h) a rank has its share of every
// chunk, so that a chunk alone can be gathered and scattered:
//
//     N rows, tp 2, 2 chunks    [ rank 0 | rank 1 ][ rank 0 | rank 1 ]       rank 0 holds its two stretches one after the other
//                                    chunk 0             chunk 1
#pragma once

#include "conjugates.h"

namespace ultrascale {

class SequenceParallel : public Conjugates {
public:
    using Conjugates::Conjugates;

    // g: all-gather.
    Incoming gather(const Tensor& x, bool beside) const override {
        const int64_t rows = x.rows() * group_.size(), n = chunks(rows);
        Incoming in{Tensor::empty({rows, x.cols()}, x.dtype(), Memory::activation,
                                  group_.symmetric_memory()),
                    {}};
        for (int64_t c = 0; c < n; ++c)
            in.chunks.push_back(
                group_.all_gather(chunk_of(in.whole, c, n), chunk_of(x, c, n), stream_for(beside)));
        return in;
    }

    // g*: reduce-scatter. It needs no symmetric memory: what is received lies elsewhere.
    Tensor empty_partial(Shape shape, DType dtype) const override {
        return Tensor::empty(std::move(shape), dtype, Memory::activation);
    }
    Outgoing begin_sum(Tensor partial) const override {
        Tensor shard = Tensor::empty({partial.rows() / group_.size(), partial.cols()},
                                     partial.dtype(), Memory::activation);
        return {std::move(partial), std::move(shard), {}};
    }
    void sum_chunk(Outgoing& sum, int64_t c, int64_t chunks, bool beside) const override {
        sum.chunks.push_back(group_.reduce_scatter(chunk_of(sum.result, c, chunks),
                                                   chunk_of(sum.partial, c, chunks), Reduce::sum,
                                                   stream_for(beside)));
    }
    Outgoing sum(Tensor partial, bool beside) const override {
        const int64_t n = chunks(partial.rows());
        Outgoing sum = begin_sum(std::move(partial));
        for (int64_t c = 0; c < n; ++c) sum_chunk(sum, c, n, beside);
        return sum;
    }

    Shape stream_shape(const Batch& batch, int64_t h) const override {
        return {batch.sequences() * batch.length() / group_.size(), h};
    }
    std::vector<Stretch> stretches(int64_t rows) const override {
        const int64_t n = chunks(rows * group_.size()), length = rows / n;
        std::vector<Stretch> all;
        for (int64_t c = 0; c < n; ++c)
            all.push_back({c * length, (c * group_.size() + group_.rank()) * length, length});
        return all;
    }
};

}  // namespace ultrascale
