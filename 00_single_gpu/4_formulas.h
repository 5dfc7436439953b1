// The playbook's formulas for a GPT, each as a function: parameters, the terms 34 and 5 a s / h of
// the activations, the batch size, attention with latent keys. A number takes 2 bytes.
// lab/formulas_demo.h prints them with numbers.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "model/gpt_terms.h"

namespace ultrascale::single_gpu {

// A GPT: attention of `heads` heads with biases, a feed-forward of 4 h with GELU, layer norms with
// biases, dropout, and a head tied to the embedding. (Brown et al. 2020, table 2.1, has GPT-3's
// sizes.)
struct Gpt {
    int64_t layers, hidden, heads, vocab;
};
inline constexpr Gpt gpt3 = {.layers = 96, .hidden = 12288, .heads = 96, .vocab = 50257};

// ---- parameters ---------------------------------------------------------------------------------

// A term of a sum: its name and its number.
struct Term {
    std::string what;
    double value;
};
inline double sum_of(const std::vector<Term>& terms) {
    double sum = 0;
    for (const Term& term : terms) sum += term.value;
    return sum;
}

// The parameters of one layer: 12 h^2 + 13 h.
inline std::vector<Term> gpt_layer_parameters(double h) {
    return {{"q, k, v: h x 3h and biases", 3 * h * h + 3 * h},
            {"attention's output: h x h and bias", h * h + h},
            {"up: h x 4h and biases", 4 * h * h + 4 * h},
            {"down: 4h x h and bias", 4 * h * h + h},
            {"two layer norms: weights and biases", 4 * h}};
}
// N = h v + L (12 h^2 + 13 h) + 2 h (without positions).
inline double gpt_parameters(const Gpt& g) {
    const double h = double(g.hidden);
    return h * double(g.vocab) + double(g.layers) * sum_of(gpt_layer_parameters(h)) + 2 * h;
}

// ---- activations (Korthikanti et al. 2022, section 4.1) -----------------------------------------

// The terms are in model/gpt_terms.h, beside which chapters 00 and 03 print what a run keeps.

// Selective recomputation drops the terms with s^2 and computes them again in the backward.
struct Selective {
    double linear;   // 34
    double squared;  // 5 a s / h
    double saved() const { return squared / (linear + squared); }
    // Attention's share of a step's FLOPs, and the share of its forward alone, which is what runs
    // again.
    double attention_share, added;
};
inline Selective selective_recomputation(const Gpt& g, int64_t seq) {
    Selective result{};
    double assb = 0;
    for (const KeptTerm& term : gpt_layer_activations())
        result.linear += term.sbh, assb += term.assb;
    const double s = double(seq), h = double(g.hidden);
    result.squared = assb * double(g.heads) * s / h;
    // The FLOPs of a step, in units of 72 b s L h^2: the linears take 1, attention s/6h (q k^T and
    // p v: 4 s h FLOP a token and layer in forward, twice that in backward), the head v/12hL.
    const double attention = s / (6 * h),
                 all = 1 + attention + double(g.vocab) / (12 * h * double(g.layers));
    result.attention_share = attention / all, result.added = attention / 3 / all;
    return result;
}

// ---- batch size ---------------------------------------------------------------------------------

// The playbook's four steps: a batch in tokens, its number of samples, the samples that a GPU takes
// at a time, and how often each GPU must do that. Returns 0 if the samples cannot be divided
// evenly.
inline int64_t accumulation_steps(int64_t samples, int64_t micro_batch, int64_t gpus) {
    return samples % (micro_batch * gpus) == 0 ? samples / (micro_batch * gpus) : 0;
}

// The critical batch size in tokens at a given loss is B* / loss^(1/alpha) with B* = 2e8 and alpha
// = 0.21 (Kaplan et al. 2020, section 5.1). So it doubles when the loss has fallen to 2^-alpha = 86
// % of its value: then the batch may be doubled, too.
inline constexpr double kaplan_tokens = 2e8, kaplan_alpha = 0.21;
inline double critical_batch(double loss) {
    return kaplan_tokens / std::pow(loss, 1 / kaplan_alpha);
}
inline double loss_of_critical_batch(double tokens) {
    return std::pow(kaplan_tokens / tokens, kaplan_alpha);
}

// ---- attention with latent keys (DeepSeek-V2, arXiv 2405.04434, section 2.1) --------------------

// Queries come from a latent of q_rank numbers, keys and values from a latent of kv_rank numbers. A
// query and a key have `nope` dimensions without a position, and `rope` dimensions with one; the
// latter part of the key is shared by all heads.
struct LatentAttention {
    int64_t hidden, heads, nope, rope, value, q_rank, kv_rank;

    // Numbers per token, in one layer.
    int64_t q() const { return heads * (nope + rope); }
    int64_t k() const { return heads * nope + rope; }
    int64_t v() const { return heads * value; }
    int64_t latents() const { return q_rank + kv_rank + rope; }
    // up() counts the weights that compute q, k and v from the latents, weights() those of all
    // projections.
    int64_t up() const { return q_rank * q() + kv_rank * (heads * (nope + value)); }
    int64_t weights() const { return hidden * latents() + up() + v() * hidden; }
    // The numbers that backward needs besides the layer's input: q, k, v, o and the latents from
    // which they are computed; or, if it computes q, k and v again, the latents and o. (The key's
    // part with a position comes from no latent; it is counted in k.)
    int64_t kept() const { return q_rank + kv_rank + q() + k() + v() + v(); }
    int64_t kept_latent() const { return latents() + v(); }
};
inline constexpr LatentAttention deepseek_v3 = {.hidden = 7168,
                                                .heads = 128,
                                                .nope = 128,
                                                .rope = 64,
                                                .value = 128,
                                                .q_rank = 1536,
                                                .kv_rank = 512};
// The numbers kept with plain keys and values of `kv_heads` heads: q, k, v and o.
inline int64_t kept_plain(const LatentAttention& a, int64_t kv_heads) {
    return 2 * a.heads * a.value + 2 * kv_heads * a.value;
}

}  // namespace ultrascale::single_gpu
