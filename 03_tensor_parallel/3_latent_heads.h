// Latent attention (model/latent.h) is split by heads, too: a rank's rows of q_b and kv_b make the
// queries, keys and values of its heads, and o_proj has their columns. The latents are made whole
// on every rank. So what enters the heads through f (1_plain.h: in backward it sums over the ranks)
// is not x with h numbers a token, but the latents with Rq + Rkv, and the shared key's R:
//
//     x -- q_a, kv_a, norms: whole on every rank --> latents -- f --> q_b, kv_b: column linears
//                                                    key ------ f --> all heads of the rank
//
//     backward    d latent = the sum over ranks of dY_r W_r        f, by the column linears
//                 d key    = the sum over ranks of their heads'    f, here
//
// A Llama sums dX there, h numbers a token. These sums have (Rq + Rkv + R) / h of its bytes, with
// DeepSeek-V3's sizes 2112 / 7168 = 29 %. In exchange every rank computes all latents.
//
// Which gradients of weights must be summed, too? After f's sum every rank has the whole d latent.
// As all ranks also have the same x, they compute the same dW of q_a, kv_a and the norms of the
// latents: nothing is left to sum, and dx needs no sum either. With sequence parallelism f becomes
// g (4_sequence_parallel.h): a rank makes the latents of its own tokens, g gathers them, and its
// reduce-scatter in backward brings each rank d latent of its tokens. So these weights have seen
// only a part of the tokens, as the norms of the residual stream have, and their gradients are
// summed over "tp" once a step.
#pragma once

#include "1_parallel_region.h"
#include "model/llama.h"

namespace ultrascale::tensor_parallel {

// `region` must outlive the model's parts. `summed_over`: the groups over which the gradients of
// the latents' weights are summed, the same as for the norms of the residual stream.
inline void share_latents(ModuleFactories& factories, const ParallelRegion& region,
                          const std::vector<std::string>& summed_over) {
    factories.shared_by_heads = {
        .summed_over = summed_over,
        .enter = [&region](const Tensor& key) { return region.enter(key); },
        .leave = [&region](const Tensor& dkey) { return region.leave(dkey); }};
}

// How many numbers a token has in each tensor that enters attention's region. In a Llama that is x
// alone; in latent attention the last one is the shared key, which no linear multiplies.
inline std::vector<int64_t> widths_into_heads(const LlamaConfig& config) {
    const LatentConfig& l = config.latent;
    if (!l) return {config.hidden};
    return {l.q_rank > 0 ? l.q_rank : config.hidden, l.kv_rank, l.rope_dim};
}

}  // namespace ultrascale::tensor_parallel
