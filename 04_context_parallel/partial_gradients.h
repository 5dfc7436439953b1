// The gradients of attention, added up block by block in fp32, as PartialAttention (merge.h) adds
// up its output. dQ stays with the queries; dK and dV of a parcel go into sums that travel with it.
//
// Given the log-sum-exp of the whole row, a block's probabilities P = exp(S - lse) are those of the
// whole softmax, and so need no merging; with delta = rowsum(dO O), also of the whole row,
// dS = P (dP - delta). So the gradients of the blocks are simply added.
//
// In the first block of a sum there is nothing to add to: what it has is written, and the rest of
// the sum begins with zero.
#pragma once

#include "keys_values.h"
#include "ring_plan.h"

namespace ultrascale {

class PartialGradients {
public:
    // q, o, dout (B, T, H, D); lse (B, H, T), of the whole rows. o is not kept.
    PartialGradients(Tensor q, Tensor o, Tensor dout, Tensor lse, RowOrders& orders)
        : q_(std::move(q)),
          dout_(std::move(dout)),
          lse_(std::move(lse)),
          delta_(activation_like(lse_)),
          orders_(orders),
          begun_(size_t(q_.size(0))) {
        ops::attention_delta(delta_, dout_, o);
        o = {};
        sum_ = activation(q_.shape(), DType::fp32);
    }
    // The next block of each sequence is the last one and has all queries, and it may write dQ in
    // q's dtype.
    void next_block_finishes() { dq_ = q_.dtype() == DType::fp32 ? sum_ : activation_like(q_); }
    // The gradients of sequence b's blocks with the keys of a parcel: added to dQ, and written to
    // `sums`, fp32.
    void add(const RingPlan& plan, size_t parcel, const std::vector<Block>& blocks, int64_t b,
             const KeysValues& held, const KeysValues& sums, const Tensor& document_starts) {
        const Tensor &dk = sums.k[size_t(b)], &dv = sums.v[size_t(b)];
        const Range written = blocks.empty() ? Range{0, 0} : plan.in_parcel(parcel, blocks[0].keys);
        zero_outside(dk, 0, written), zero_outside(dv, 0, written);
        for (size_t i = 0; i < blocks.size(); ++i) {
            const Block& block = blocks[i];
            const bool first = !begun_[size_t(b)];
            begun_[size_t(b)] = true;
            if (first) zero_outside(sum_, b, block.queries);
            const auto rows = [&](const Tensor& x) { return tokens_of(x, b, block.queries); };
            const auto keys = [&](const Tensor& x) {
                return tokens_of(x, 0, plan.in_parcel(parcel, block.keys));
            };
            ops::attention_backward(rows(dq_ ? dq_ : sum_), keys(dk), keys(dv), rows(dout_),
                                    rows(q_), keys(held.k[size_t(b)]), keys(held.v[size_t(b)]),
                                    rows_of(lse_, b, block.queries, orders_),
                                    rows_of(delta_, b, block.queries, orders_),
                                    mask_of(block, document_starts, b),
                                    {.dq = first ? Tensor() : rows(sum_), .dkv = i > 0});
        }
    }
    // In q's dtype.
    Tensor dq() const { return dq_ ? dq_ : rounded(sum_, q_.dtype()); }

private:
    // Of sequence b of x (B, T, heads, D).
    static void zero_outside(const Tensor& x, int64_t b, Range tokens) {
        for (const Range rest : {Range{0, tokens.begin}, Range{tokens.end, x.size(1)}})
            if (rest.size() > 0) ops::fill(tokens_of(x, b, rest), 0);
    }

    Tensor q_, dout_, lse_, delta_, sum_, dq_;
    RowOrders& orders_;
    std::vector<bool> begun_;  // of each sequence
};

}  // namespace ultrascale
