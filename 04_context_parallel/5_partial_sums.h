// This file lets a part of a rank's queries meet a part of a block's keys, and adds up what comes
// of it, where 1_ring.h has whole blocks only. So at each hop a zig-zag computes half of the pairs
// and not all.
//
//                    keys of a lower rank: head, tail      keys of a higher rank: head, tail
//     queries: head          all      -                            -       -
//              tail          all      -                            all     all
//     merged into            all queries' o, lse                   the tail's o, lse only
//
// PartialAttention is forward's sum. It merges by differences of log-sum-exps, and so never
// overflows (the running sum is Milakov & Gimelshein's, 2018; that outputs are merged by it is
// FlashAttention's, Dao et al. 2022):
//
//     share = sigmoid(lse_b - lse_a)       o   <- o + share (o_b - o)
//                                          lse <- max(lse_a, lse_b) + log1p(exp(-|lse_a - lse_b|))
//
// A block of which a query sees no key has lse_b = -infinity and must change nothing, even as the
// first block, where the difference -infinity minus -infinity is not a number. ops::attention_merge
// does all this in fp32. If the sum o is kept in 16 bits instead, it is rounded once for each
// block. That error grows with the ring, and the loss hardly shows it (--merge bf16, --demo merge).
// With two blocks there is one merge, whose result the caller would round anyway.
//
// PartialGradients is backward's sum, in fp32. dq stays with the queries. dk and dv go into sums
// that travel with their KV chunk (KeysValues). Some kernels can hold dq open from block to block
// (ops::OpenDq). Otherwise it is added up in fp32, too. The first block of such a sum has nothing
// to add to: it writes what it has, and the rest of the sum begins with zero.
#pragma once

#include <cmath>

#include "1_ring.h"
#include "4_ring_plan.h"
#include "kernels/ops_attention_open.h"

namespace ultrascale::context_parallel {

// Some tokens of sequence b of x (B, T, heads, D), as (1, tokens, heads, D).
inline Tensor tokens_of(const Tensor& x, int64_t b, Range tokens) {
    return x.slice(b, b + 1)
        .view({x.size(1), x.size(2) * x.size(3)})
        .slice(tokens.begin, tokens.end)
        .view({1, tokens.size(), x.size(2), x.size(3)});
}

// Returns a block's mask, with the documents' starts (B, T) of all this rank's tokens, if there are
// any.
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
    // Returns the output in the activations' dtype.
    Tensor output() const { return rounded(o_, q_.dtype()); }

private:
    Tensor q_, o_, lse_;       // o (B, T, H, D)
    std::vector<bool> begun_;  // of each sequence
};

// The keys and values of some tokens, as a tensor (1, tokens, K, D) for each sequence of the
// micro-batch. Both vectors are empty if there are none.
struct KeysValues {
    std::vector<Tensor> k, v;
    explicit operator bool() const { return !k.empty(); }

    // Returns new ones for so many tokens of sequences like those of x (B, T, K, D).
    static KeysValues empty(const Tensor& x, int64_t tokens, DType dtype, Memory category,
                            std::shared_ptr<Allocator> from = nullptr) {
        const int64_t B = x.size(0);
        const Tensor all =
            Tensor::empty({2 * B, tokens, x.size(2), x.size(3)}, dtype, category, std::move(from));
        KeysValues both;
        for (int64_t b = 0; b < B; ++b) {
            both.k.push_back(all.slice(b, b + 1));
            both.v.push_back(all.slice(B + b, B + b + 1));
        }
        return both;
    }
    // Returns those of k and v (B, T, K, D), which are not copied.
    static KeysValues tokens_of(const Tensor& k, const Tensor& v, Range tokens) {
        KeysValues both;
        for (int64_t b = 0; b < k.size(0); ++b) {
            both.k.push_back(context_parallel::tokens_of(k, b, tokens));
            both.v.push_back(context_parallel::tokens_of(v, b, tokens));
        }
        return both;
    }
    // k and v (B, tokens, K, D) of what empty() made: the sequences are adjacent there.
    Tensor all_k() const { return all(k); }
    Tensor all_v() const { return all(v); }

    // dk and dv (B, tokens, K, D) become these plus `more`.
    void finish(const Tensor& dk, const Tensor& dv, const KeysValues& more) const {
        for (size_t b = 0; b < k.size(); ++b) {
            const Range all{0, k[b].size(1)};
            ops::add(context_parallel::tokens_of(dk, int64_t(b), all), k[b], more.k[b]);
            ops::add(context_parallel::tokens_of(dv, int64_t(b), all), v[b], more.v[b]);
        }
    }
    void add(const KeysValues& more) const {
        for (size_t b = 0; b < k.size(); ++b) ops::add(k[b], more.k[b]), ops::add(v[b], more.v[b]);
    }
    void send(std::vector<Transfer>& transfers, int to) const {
        transfer(transfers, Transfer::send, to);
    }
    void receive(std::vector<Transfer>& transfers, int from) const {
        transfer(transfers, Transfer::recv, from);
    }

private:
    static Tensor all(const std::vector<Tensor>& x) {
        Shape shape = x.front().shape();
        shape[0] = int64_t(x.size());
        return x.front().extended_view(shape);
    }
    void transfer(std::vector<Transfer>& transfers, Transfer::Direction direction, int peer) const {
        for (const std::vector<Tensor>* of : {&k, &v})
            for (const Tensor& sequence : *of) transfers.push_back({direction, sequence, peer});
    }
};

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
    // Says that the next block of each sequence is the last one and has all queries, so that it may
    // write dQ in q's dtype.
    void next_block_finishes() {
        if (!open_) dq_ = q_.dtype() == DType::fp32 ? sum_ : activation_like(q_);
    }
    // Adds the gradients of sequence b's blocks with the keys of a KV chunk to dQ, and writes those
    // of the keys and values to `sums`, in fp32.
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
