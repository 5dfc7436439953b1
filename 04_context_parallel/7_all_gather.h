// Context parallelism works without a ring, too: by an all-gather (Llama 3, section 3.3.2) every
// rank collects all keys and values, and attends to them at once. On 4 ranks it sends what the
// reversed ring does, 9.0 MiB a step, but holds 1.25 MiB of buffers instead of 0.375 (README.md).
//
//     rank r    k_r, v_r  --all-gather-->  k, v of the whole sequence;  o_r = attention(q_r, k, v)
//     backward  the same again; dk, dv of the whole sequence, fp32  --reduce-scatter-->  dk_r, dv_r
//
// The communication is not hidden, but it is small where a few key heads serve many query heads,
// and one step has one mask, however documents lie. The price is memory: all keys at once, and
// their gradients in fp32.
//
// With a zig-zag the ranks' chunks arrive in the order 0 7 1 6 2 5 3 4 and are put in order.
#pragma once

#include "2_zigzag.h"
#include "comm/comm.h"
#include "model/parts.h"

namespace ultrascale::context_parallel {

class AllGatherAttention : public AttentionCore {
public:
    AllGatherAttention(const Communicator& cp, const SequenceCut& cut, RowOrders orders)
        : cp_(cp), cut_(cut), orders_(std::move(orders)) {}

    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context& context) override {
        const Tensor all_k = gather(k), all_v = gather(v);  // (B, T, K, D)
        const Tensor o = activation_like(q), q_chunks = by_chunk(q), o_chunks = by_chunk(o);
        const Tensor lse = activation({q_chunks.size(0), q.size(2), q_chunks.size(1)}, DType::fp32);
        for (int64_t i = 0; i < q_chunks.size(0); ++i)
            ops::attention_forward(one(o_chunks, i), one(lse, i), one(q_chunks, i),
                                   one(all_k, i / cut_.chunks()), one(all_v, i / cut_.chunks()),
                                   mask(i, context));
        saved.keep("q", q), saved.keep("k", k), saved.keep("v", v);
        saved.keep("o", o), saved.keep("lse", lse);
        return o;
    }

    Gradients backward(const Tensor& dout, Saved& saved, Context& context) override {
        const Tensor q = saved.take("q"), lse = saved.take("lse"), delta = activation_like(lse);
        ops::attention_delta(delta, by_chunk(dout), by_chunk(saved.take("o")));
        Gradients gradients{.dq = activation_like(q)};
        const Tensor k = gather(saved.take("k")), v = gather(saved.take("v"));
        const Tensor dk = Tensor::zeros(k.shape(), DType::fp32, Memory::communication),
                     dv = Tensor::zeros(k.shape(), DType::fp32, Memory::communication);
        for (int64_t i = 0; i < lse.size(0); ++i) {
            const int64_t b = i / cut_.chunks();
            ops::attention_backward(one(by_chunk(gradients.dq), i), one(dk, b), one(dv, b),
                                    one(by_chunk(dout), i), one(by_chunk(q), i), one(k, b),
                                    one(v, b), one(lse, i), one(delta, i), mask(i, context),
                                    {.dkv = true});
        }
        gradients.dk = scatter_sum(dk, q.dtype()), gradients.dv = scatter_sum(dv, q.dtype());
        return gradients;
    }

private:
    static Tensor one(const Tensor& x, int64_t i) { return x.slice(i, i + 1); }
    // x (B, tokens, H, D) as (B chunks, tokens of a chunk, H, D).
    Tensor by_chunk(const Tensor& x) const {
        return x.view({x.size(0) * cut_.chunks(), x.size(1) / cut_.chunks(), x.size(2), x.size(3)});
    }
    // Returns the mask of the queries of chunk i.
    ops::AttentionMask mask(int64_t i, const Context& context) const {
        const int64_t c = i % cut_.chunks(), tokens = cut_.chunk(c).size();
        const Tensor& starts = context.batch.document_starts;  // (B, tokens of this rank)
        return {.q_offset = cut_.position(cp_.rank(), cut_.chunk(c).begin),
                .document_starts =
                    starts ? one(starts.view({starts.numel() / tokens, tokens}), i) : Tensor(),
                .prefix = context.batch.prefix};
    }

    // Calls visit(a, b) for each chunk: a is its place among the chunks of whole sequences
    // (B, T, ...), b its place in the order in which ranks send and receive chunks, (n, B, chunks).
    template <class Visit>
    void for_each_chunk(int64_t B, Visit visit) const {
        const int64_t n = cut_.ranks(), C = cut_.chunks(), size = cut_.chunk(0).size();
        for (int64_t b = 0; b < B; ++b)
            for (int64_t rank = 0; rank < n; ++rank)
                for (int64_t c = 0; c < C; ++c) {
                    const int64_t chunk = cut_.position(rank, cut_.chunk(c).begin) / size;
                    visit(b * n * C + chunk, (rank * B + b) * C + c);
                }
    }
    bool in_order(int64_t B) const { return B == 1 && cut_.chunks() == 1; }

    // Returns the whole sequences (B, T, K, D) of x (B, tokens, K, D).
    Tensor gather(const Tensor& x) {
        const int64_t B = x.size(0), n = cut_.ranks();
        const Tensor parts = Tensor::empty({n, B, x.size(1), x.size(2), x.size(3)}, x.dtype(),
                                           Memory::communication, cp_.symmetric_memory());
        cp_.all_gather(parts, x);
        const Shape whole{B, cut_.seq(), x.size(2), x.size(3)};
        if (in_order(B)) return parts.view(whole);
        const Tensor& order = orders_.made({1, B}, [&](std::vector<int32_t>& rows) {
            rows.resize(size_t(B * n * cut_.chunks()));
            for_each_chunk(B, [&](int64_t at, int64_t from) { rows[size_t(at)] = int32_t(from); });
        });
        return reordered(parts, order, whole, Memory::communication);
    }
    // Returns this rank's part (B, tokens, K, D) of the sum of all ranks' x (B, T, K, D).
    Tensor scatter_sum(const Tensor& x, DType dtype) {
        const int64_t B = x.size(0), n = cut_.ranks();
        const Tensor& order = orders_.made({2, B}, [&](std::vector<int32_t>& rows) {
            rows.resize(size_t(B * n * cut_.chunks()));
            for_each_chunk(B, [&](int64_t at, int64_t from) { rows[size_t(from)] = int32_t(at); });
        });
        const Tensor parts =
            in_order(B) ? x : reordered(x, order, x.shape(), Memory::communication);
        const Shape shape{B, cut_.length(), x.size(2), x.size(3)};
        const Tensor sum = activation(shape, DType::fp32);
        cp_.reduce_scatter(sum, parts);
        if (dtype == DType::fp32) return sum;
        const Tensor rounded = activation(shape, dtype);
        ops::copy(rounded, sum);
        return rounded;
    }

    const Communicator& cp_;
    SequenceCut cut_;
    RowOrders orders_;
};

}  // namespace ultrascale::context_parallel
