// Latent attention (model/latent.h) is split by heads, too: a rank's rows of q_b and kv_b make the
// queries, keys and values of its heads, and o_proj has its columns. The latents are made whole on
// every rank, so what enters the heads is not x with h numbers a token, but the latents with
// Rq + Rkv, and the key's R:
//
//     x -- q_a, kv_a, norms: whole on every rank --> latents -- f --> q_b, kv_b: column linears
//                                                    key ------ f --> all heads of the rank
//
//     backward    d latent = the sum over ranks of dY_r W_r     f, by the column linears
//                 d key    = the sum over ranks of what its heads add     f, here
//
// A Llama sums dX of (N, h) there. These sums have (Rq + Rkv + R) / h of its bytes, with
// DeepSeek-V3's sizes 2112 / 7168 = 29 %. In exchange every rank makes all latents.
//
// Which gradients must be summed over the ranks? Behind f, d latent is whole on every rank. All
// ranks have the same x and compute the same dW of q_a, kv_a and the norms of the latents: nothing
// is left to sum, and dx needs no sum either. With sequence parallelism f becomes g: a rank makes
// the latents of its own tokens, g gathers them, and its reduce-scatter in backward brings each
// rank d latent of its tokens. So these weights have seen only a part of the tokens, as the norms
// of the residual stream have, and their gradients are summed over "tp" once a step.
#pragma once

#include "1_parallel_region.h"
#include "model/llama.h"

namespace ultrascale::tensor_parallel {

// `region` must outlive the model's parts. `summed_over`: as of the norms of the stream.
inline void share_latents(ModuleFactories& factories, const ParallelRegion& region,
                          const std::vector<std::string>& summed_over) {
    factories.shared_by_heads = {
        .summed_over = summed_over,
        .enter = [&region](const Tensor& key) { return region.enter(key); },
        .leave = [&region](const Tensor& dkey) { return region.leave(dkey); }};
}

// The numbers a token of each tensor that enters attention's region: of a Llama x, which q, k and v
// share. The last one of latent attention is the key, which no linear multiplies.
inline std::vector<int64_t> widths_into_heads(const LlamaConfig& config) {
    const LatentConfig& l = config.latent;
    if (!l) return {config.hidden};
    return {l.q_rank > 0 ? l.q_rank : config.hidden, l.kv_rank, l.rope_dim};
}

}  // namespace ultrascale::tensor_parallel
