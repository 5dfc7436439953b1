// Attention in parts: a softmax over all keys from softmaxes over some of them.
//
// Attention over a block of keys gives o_b, a mean of its values, and lse_b = log sum exp(scores),
// which tells how much that block weighs. Two blocks together give (the running sum is Milakov &
// Gimelshein's, 2018; that outputs are merged by it is FlashAttention's, Dao et al. 2022):
//
//         exp(lse_a) o_a + exp(lse_b) o_b
//     o = -------------------------------        lse = log(exp(lse_a) + exp(lse_b))
//             exp(lse_a) + exp(lse_b)
//
// As it stands, exp(90) overflows in fp32. The same with differences only, which never do:
//
//     share = sigmoid(lse_b - lse_a)       o   <- o + share (o_b - o)
//                                          lse <- max(lse_a, lse_b) + log1p(exp(-|lse_a - lse_b|))
//
// A block of which a query sees no key has lse_b = -infinity and must change nothing, even as the
// first block, where the difference -infinity minus -infinity is not a number. ops::attention_merge
// does all this in fp32. If the sum o is kept in 16 bits instead, it is rounded once for each
// block. That error grows with the ring, and the loss hardly shows it (--merge bf16, --demo merge).
// With two blocks there is one merge, whose result the caller would round anyway.
#pragma once

#include <cmath>

#include "2_zigzag.h"
#include "kernels/ops_attention_merge.h"
#include "row_order.h"

namespace ultrascale::context_parallel {

// Some tokens of sequence b of x (B, T, heads, D), as (1, tokens, heads, D).
inline Tensor tokens_of(const Tensor& x, int64_t b, Range tokens) {
    return x.slice(b, b + 1)
        .view({x.size(1), x.size(2) * x.size(3)})
        .slice(tokens.begin, tokens.end)
        .view({1, tokens.size(), x.size(2), x.size(3)});
}

// A block's mask, with the documents' starts (B, T) of all this rank's tokens, if there are any.
inline ops::AttentionMask mask_of(const Block& block, const Tensor& document_starts, int64_t b) {
    ops::AttentionMask mask = block.mask;
    if (document_starts)
        mask.document_starts = document_starts.slice(b, b + 1)
                                   .view({document_starts.size(1)})
                                   .slice(block.queries.begin, block.queries.end);
    return mask;
}

// x (B, H, T) has a number for each head and query of this rank, such as the log-sum-exp. Returns
// those of some queries of sequence b, (1, H, queries): a copy, as they are not contiguous in x.
inline Tensor rows_of(const Tensor& x, int64_t b, Range queries, RowOrders& orders) {
    const int64_t H = x.size(1), T = x.size(2);
    const Tensor sequence_rows = x.slice(b, b + 1);
    if (queries.size() == T) return sequence_rows;
    check(T % queries.size() == 0 && queries.begin % queries.size() == 0, "queries of a chunk");
    // Read as rows of one chunk.
    const Tensor& order = orders.made({4, H, T, queries.begin}, [&](std::vector<int32_t>& rows) {
        for (int64_t h = 0; h < H; ++h)
            rows.push_back(int32_t((h * T + queries.begin) / queries.size()));
    });
    return reordered(sequence_rows, order, {1, H, queries.size()}, Memory::workspace);
}

// x in this dtype; itself, if it has that.
inline Tensor rounded(const Tensor& x, DType dtype) {
    if (x.dtype() == dtype) return x;
    const Tensor y = activation(x.shape(), dtype);
    ops::copy(y, x);
    return y;
}

// The output of attention, added up block by block.
class PartialAttention {
public:
    PartialAttention(const Tensor& q, DType merge_dtype)
        : q_(q),
          o_(activation(q.shape(), merge_dtype)),
          lse_(activation({q.size(0), q.size(2), q.size(1)}, DType::fp32)),
          begun_(size_t(q.size(0))) {
        ops::fill(lse_, -INFINITY);  // no key seen so far; o is not read then
    }
    // Attends to a block of keys and values (1, tokens, K, D) of sequence b.
    void add(int64_t b, const Block& block, const Tensor& k, const Tensor& v,
             const Tensor& document_starts) {
        const Tensor q = tokens_of(q_, b, block.queries);
        const Tensor sum = o_.slice(b, b + 1), sum_lse = lse_.slice(b, b + 1);
        // The first block with all queries is the sum; there is nothing to merge it with.
        const bool is_sum =
            !begun_[size_t(b)] && block.queries.size() == q_.size(1) && sum.dtype() == q.dtype();
        begun_[size_t(b)] = true;
        const Tensor o = is_sum ? sum : Tensor::empty(q.shape(), q.dtype(), Memory::workspace);
        const Tensor lse =
            is_sum ? sum_lse
                   : Tensor::empty({1, q.size(2), q.size(1)}, DType::fp32, Memory::workspace);
        ops::attention_forward(o, lse, q, k, v, mask_of(block, document_starts, b));
        if (!is_sum) ops::attention_merge(sum, sum_lse, o, lse, block.queries.begin);
    }
    const Tensor& lse() const { return lse_; }  // (B, H, T)
    // The output in the activations' dtype.
    Tensor output() const { return rounded(o_, q_.dtype()); }

private:
    Tensor q_, o_, lse_;       // o (B, T, H, D)
    std::vector<bool> begun_;  // of each sequence
};

}  // namespace ultrascale::context_parallel
