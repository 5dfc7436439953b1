// Latent attention (MLA: DeepSeek-V2, arXiv 2405.04434, section 2.1) in place of a Llama's.
// Queries, keys and values of all heads are made of short vectors, the latents c_q and c_kv. A head
// of a query or key has P numbers without position and R with it (RoPE), a head of a value has V.
// The R numbers of the key are made of x directly, and all heads share them:
//
//     x (h) --+-- q_a ------> c_q (Rq) ----- norm --> q_b ----> q   H heads of  P | R rotated
//             |                                                                 ^   ^
//             +-- kv_a --+--> c_kv (Rkv) --- norm --> kv_b -+-> k   H heads of  P | R
//                        |                                  |                       |
//                        |                                  +-> v   H heads of  V | 0
//                        +--> key (R) ------ rotated -------------- one for all heads
//
//     o = softmax(q k^T / sqrt(P + R)) v,    y = o_proj(the first V numbers of each head of o)
//
// The attention cores know one size of heads, D = P + R. So v is padded with zeros to D numbers.
// Then the last D - V numbers of o are zeros and are cut off, and the gradients there are zero or
// not used. In backward the key's copy to all heads becomes a sum over them; the norms' backward
// turns d norm(c) into dc:
//
//     do = pad(dy W_o)                            dq, dk, dv from the core
//     d norm(c_q) = dq W_qb                       dq after it is rotated back
//     d norm(c_kv) = [dk's P | dv's V] W_kvb      d key = sum over heads of dk's R, rotated back
//     dx = [dc_q | dc_kv | d key] W_a             W_a = [W_qa; W_kva]: one product makes all three
//
// Numbers of a token that are kept for backward, besides x, statistics, and o cut to H V numbers:
//
//     both latents before and after their norms, q, k, v     2 (Rq + Rkv) + 3 H D
//     --recompute selective: the latents and the key         Rq + Rkv + R; the others made again
//
// The rotated pairs are neighbours, as in DeepSeek's files, so that weights need not be permuted.
// The latents' norms have an epsilon of 1e-6, whatever config.json says of the other norms. With
// Rq = 0 queries are made of x by q_proj (DeepSeek-V2-Lite).
//
// Tensor parallelism cuts q_b and kv_b by heads, and o_proj (03_tensor_parallel/3_latent_heads.h).
#pragma once

#include "llama.h"

namespace ultrascale {

class LatentAttention : public SelfAttention {
public:
    // Registers the parameters of `path` (self_attn). `recompute`: selective recomputation.
    LatentAttention(ParameterList& list, const LlamaConfig& config,
                    const ModuleFactories& factories, const ModulePath& path, bool recompute);
    Tensor forward(Tensor x, const Tensor& residual, Saved& saved, Context& context) override;
    Tensor backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when) override;
    void backward_weight(Saved& saved, Context& context) override;

private:
    struct Latents {
        Tensor q, kv, key;  // (..., Rq), or x if Rq = 0; (..., Rkv); (..., R): as the stream
    };
    struct Heads {
        Tensor q, k, v;  // (B, T, H, D)
    };
    Latents latents(Tensor x, Saved& saved, Context& context);
    Heads heads(Latents from, Saved& saved, Context& context);
    Tensor latents_backward(Tensor dq, Tensor dk, Tensor dv, Saved& saved, Context& context,
                            WeightGradient when);  // returns dx

    // Copies the first columns of heads of o, or puts these into heads of D.
    Tensor cut(const Tensor& heads) const;    // (B, T, H, D) -> (B, T, H V)
    Tensor padded(const Tensor& from) const;  // (B, T, H V) -> (B, T, H, D)

    LatentConfig sizes_;
    int64_t heads_, head_dim_;  // H of this rank; D
    bool recompute_;
    Tensor frequencies_;                                  // (R / 2)
    std::unique_ptr<Linear> down_;                        // W_a
    std::unique_ptr<Norm> q_norm_, kv_norm_;              // no q_norm_ if Rq = 0
    std::unique_ptr<Linear> q_up_, kv_up_, o_proj_;       // q_b_proj (or q_proj), kv_b_proj
    std::function<Tensor(const Tensor&)> enter_, leave_;  // ModuleFactories::shared_by_heads
    std::unique_ptr<AttentionCore> attention_;
};

}  // namespace ultrascale
