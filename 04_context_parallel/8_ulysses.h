// DeepSpeed-Ulysses (Jacobs et al. 2023, https://arxiv.org/abs/2309.14509) uses that heads are
// independent. Before attention an all-to-all turns "some tokens of all heads" into "all tokens of
// some heads", and after it another one turns back. On 4 ranks this sends 4.5 MiB a step, the
// reversed ring 9.0 (README.md).
//
//     u = 2            before: (tokens x heads)     inside                  after
//     rank 0           tokens 0-7,  heads 0 1 2 3   tokens 0-15, heads 0 1  as before
//     rank 1           tokens 8-15, heads 0 1 2 3   tokens 0-15, heads 2 3
//
// Inside is any attention at all: a device's own, or a ring across other ranks (USP: Fang & Zhao
// 2024, https://arxiv.org/abs/2405.07719). The bytes shrink as u grows: (u-1)/u of q, k, v and o,
// where a ring sends u - 1 times k and v. But u is at most the number of heads. If there are fewer
// key heads than ranks, each is sent to several ranks, and their gradients are added up.
//
// Two permutations, as an all-to-all sends slice i of its input to rank i:
//
//     (tokens, u, heads/u)  ->  (u, tokens, heads/u)              all-to-all
//     (u, chunks, tokens/u) ->  (chunks, u, tokens/u)             tokens in order within each chunk
#pragma once

#include "3_documents.h"
#include "comm/comm.h"

namespace ultrascale::context_parallel {

class UlyssesAttention : public AttentionCore {
public:
    // A rank's `chunks` chunks of each sequence are parts of the chunks that the group has
    // together. `starts_of`: the document starts of all the group's tokens, for a batch.
    UlyssesAttention(const Communicator& group, int64_t chunks, int64_t kv_heads,
                     std::unique_ptr<AttentionCore> inside,
                     std::function<Tensor(const Batch&)> starts_of, RowOrders orders)
        : group_(group),
          u_(group.size()),
          chunks_(chunks),
          kv_heads_(kv_heads),
          inside_(std::move(inside)),
          starts_of_(std::move(starts_of)),
          orders_(std::move(orders)) {}

    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context& context) override {
        Context all_tokens = with_starts(context);
        const Tensor o =
            inside_->forward(to_heads(q), to_heads(k), to_heads(v), saved["heads"], all_tokens);
        return to_tokens(o, q.size(2));
    }

    Gradients backward(const Tensor& dout, Saved& saved, Context& context) override {
        Context all_tokens = with_starts(context);
        Gradients d = inside_->backward(to_heads(dout), saved["heads"], all_tokens);
        d.dq = to_tokens(d.dq, dout.size(2));
        d.dk = to_tokens(d.dk, kv_heads_), d.dv = to_tokens(d.dv, kv_heads_);
        return d;
    }

private:
    Context with_starts(const Context& context) const {
        Context whole = context;
        whole.batch.document_starts = starts_of_(context.batch);
        return whole;
    }
    int64_t heads_each(int64_t heads) const { return std::max<int64_t>(heads / u_, 1); }

    // (B, tokens, heads, D) of this rank's tokens -> (B, u tokens, heads / u, D).
    Tensor to_heads(const Tensor& x) {
        const int64_t B = x.size(0), T = x.size(1), D = x.size(3), N = B * T,
                      each = heads_each(x.size(2)), parts = x.size(2) / each;
        const Tensor& by_rank = orders_.made({3, N, parts}, [&](std::vector<int32_t>& rows) {
            for (int64_t i = 0; i < u_; ++i)  // part i parts / u of each token goes to rank i
                for (int64_t n = 0; n < N; ++n) rows.push_back(int32_t(n * parts + i * parts / u_));
        });
        const Tensor send = reordered(x, by_rank, {u_, N, each, D}, Memory::communication);
        const Shape whole{B, u_ * T, each, D};
        const bool in_order = B * chunks_ == 1;
        const Tensor received = Tensor::empty(
            send.shape(), x.dtype(), in_order ? Memory::activation : Memory::communication);
        group_.all_to_all(received, send);
        if (in_order) return received.view(whole);
        return reordered(received, orders_.swapped(u_, B * chunks_), whole, Memory::activation);
    }
    // Turns back, and adds up the parts of ranks that had the same key head.
    Tensor to_tokens(const Tensor& x, int64_t heads) {
        const int64_t B = x.size(0), T = x.size(1) / u_, D = x.size(3), N = B * T, each = x.size(2),
                      parts = heads / each;
        const bool in_order = B * chunks_ == 1;
        const Tensor send = in_order ? x.view({u_, N, each, D})
                                     : reordered(x, orders_.swapped(B * chunks_, u_),
                                                 {u_, N, each, D}, Memory::communication);
        Tensor received = Tensor::empty(send.shape(), x.dtype(), Memory::communication);
        group_.all_to_all(received, send);
        if (parts < u_) received = add_copies(received, parts);
        return reordered(received, orders_.swapped(parts, N), {B, T, heads, D}, Memory::activation);
    }
    // Adds up, in fp32, the u / parts slices of x (u, N, 1, D) that belong to the same key head.
    Tensor add_copies(const Tensor& x, int64_t parts) const {
        Shape shape = x.shape();
        shape[0] = parts;
        const Tensor sum = Tensor::zeros(shape, DType::fp32, Memory::communication);
        for (int64_t i = 0; i < u_; ++i)
            ops::add(sum.slice(i * parts / u_, i * parts / u_ + 1), x.slice(i, i + 1));
        const Tensor rounded = Tensor::empty(shape, x.dtype(), Memory::communication);
        ops::copy(rounded, sum);
        return rounded;
    }

    const Communicator& group_;
    int64_t u_, chunks_, kv_heads_;
    std::unique_ptr<AttentionCore> inside_;
    std::function<Tensor(const Batch&)> starts_of_;
    RowOrders orders_;
};

}  // namespace ultrascale::context_parallel
