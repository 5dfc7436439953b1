// The gradients of attention, added up block by block in fp32, as PartialAttention (merge.h) adds
// up its output. dQ stays with the queries; dK and dV of a KV chunk go into sums that travel with
// it.
//
// Given the log-sum-exp of the whole row, a block's probabilities P = exp(S - lse) are those of the
// whole softmax, and so need no merging; with delta = rowsum(dO O), also of the whole row,
// dS = P (dP - delta). So the gradients of the blocks are simply added.
//
// dQ is held open from block to block where kernels can do that (ops::OpenDq). Otherwise it is
// added up in fp32, too; in the first block of such a sum there is nothing to add to: what it has
// is written, and the rest of the sum begins with zero.
#pragma once

#include "4_ring_plan.h"
#include "kernels/ops_attention_open.h"
#include "keys_values.h"

namespace ultrascale::context_parallel {

class PartialGradients {
public:
    // q, o, dout (B, T, H, D); lse (B, H, T), of the whole rows; keys have kv_heads heads. o is
    // not kept.
    PartialGradients(Tensor q, Tensor o, Tensor dout, Tensor lse, int64_t kv_heads,
                     RowOrders& orders)
        : q_(std::move(q)),
          dout_(std::move(dout)),
          lse_(std::move(lse)),
          delta_(activation_like(lse_)),
          orders_(orders),
          begun_(size_t(q_.size(0))) {
        ops::attention_delta(delta_, dout_, o);
        o = {};
        open_ = ops::open_dq(dout_, lse_, delta_, kv_heads);
        if (!open_) sum_ = activation(q_.shape(), DType::fp32);
    }
    // The next block of each sequence is the last one and has all queries, and it may write dQ in
    // q's dtype.
    void next_block_finishes() {
        if (!open_) dq_ = q_.dtype() == DType::fp32 ? sum_ : activation_like(q_);
    }
    // The gradients of sequence b's blocks with the keys of a KV chunk: added to dQ, and written to
    // `sums`, fp32.
    void add(const RingPlan& plan, size_t kv_chunk, const std::vector<Block>& blocks, int64_t b,
             const KeysValues& held, const KeysValues& sums, const Tensor& document_starts) {
        const Tensor &dk = sums.k[size_t(b)], &dv = sums.v[size_t(b)];
        const Range written =
            blocks.empty() ? Range{0, 0} : plan.in_kv_chunk(kv_chunk, blocks[0].keys);
        zero_outside(dk, 0, written), zero_outside(dv, 0, written);
        for (size_t i = 0; i < blocks.size(); ++i) {
            const auto keys = [&](const Tensor& x) {
                return tokens_of(x, 0, plan.in_kv_chunk(kv_chunk, blocks[i].keys));
            };
            add_block(b, blocks[i].queries, keys(dk), keys(dv), keys(held.k[size_t(b)]),
                      keys(held.v[size_t(b)]), mask_of(blocks[i], document_starts, b), i > 0);
        }
    }
    // In q's dtype.
    Tensor dq() const {
        if (!open_) return dq_ ? dq_ : rounded(sum_, q_.dtype());
        const Tensor dq = activation_like(q_);
        ops::close_dq(dq, open_, sum_);
        return dq;
    }

private:
    // Of some queries of sequence b. `adds`: dk and dv are added to.
    void add_block(int64_t b, Range queries, const Tensor& dk, const Tensor& dv, const Tensor& k,
                   const Tensor& v, const ops::AttentionMask& mask, bool adds) {
        const Tensor q = tokens_of(q_, b, queries), dout = tokens_of(dout_, b, queries);
        if (open_ && open_.takes(queries.begin, queries.size()))
            return ops::attention_backward(open_, b, queries.begin, dk, dv, dout, q, k, v, mask,
                                           adds);
        if (!sum_) {  // besides the open one
            sum_ = activation(q_.shape(), DType::fp32);
            ops::fill(sum_, 0);
            begun_.assign(begun_.size(), true);
        }
        const bool first = !begun_[size_t(b)];
        begun_[size_t(b)] = true;
        if (first) zero_outside(sum_, b, queries);
        const Tensor sum = tokens_of(sum_, b, queries);
        ops::attention_backward(dq_ ? tokens_of(dq_, b, queries) : sum, dk, dv, dout, q, k, v,
                                rows_of(lse_, b, queries, orders_),
                                rows_of(delta_, b, queries, orders_), mask,
                                {.dq = first ? Tensor() : sum, .dkv = adds});
    }
    // Of sequence b of x (B, T, heads, D).
    static void zero_outside(const Tensor& x, int64_t b, Range tokens) {
        for (const Range rest : {Range{0, tokens.begin}, Range{tokens.end, x.size(1)}})
            if (rest.size() > 0) ops::fill(tokens_of(x, b, rest), 0);
    }

    Tensor q_, dout_, lse_, delta_;
    ops::OpenDq open_;
    Tensor sum_, dq_;
    RowOrders& orders_;
    std::vector<bool> begun_;  // of each sequence
};

}  // namespace ultrascale::context_parallel
