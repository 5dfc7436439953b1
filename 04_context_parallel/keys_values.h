// Keys and values, or their gradients, that travel together.
#pragma once

#include "5_merge.h"
#include "comm/comm.h"

namespace ultrascale::context_parallel {

// The keys and values of some tokens, as a tensor (1, tokens, K, D) for each sequence of the
// micro-batch. Both vectors are empty if there are none.
struct KeysValues {
    std::vector<Tensor> k, v;
    explicit operator bool() const { return !k.empty(); }

    // New ones for so many tokens of sequences like those of x (B, T, K, D).
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
    // Those of k and v (B, T, K, D), not copied.
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

}  // namespace ultrascale::context_parallel
