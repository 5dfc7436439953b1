// The bytes of latent attention's tensors (model/latent.h), and what they hold at which moment of
// their backward.
#pragma once

#include <algorithm>
#include <functional>

#include "activation_tensors.h"

namespace ultrascale {

struct LatentBytes {
    double heads;  // (tokens, H D): q, k or v, or o padded
    double o;      // (tokens, H V): o as o_proj keeps it
    double up;     // (tokens, H (P + V)): keys and values before the key's other part joins them
    // Latents and the key in the stream (a rank's tokens), and inside (all tokens). With Rq = 0 the
    // queries' latent is x: `q` is 0, and `inside_q` (tokens, h).
    double q, kv, key, inside_q, inside_kv, inside_key;
    double all;                // q, kv and key together
    double x;                  // as the first product keeps it
    double input_q, input_kv;  // as the second products keep it: normed, or x
    double statistics;         // of the latents' norms

    LatentBytes(const LocalSizes& s, const TensorBytes& t) {
        const LatentConfig& l = s.latent;
        const double e = double(dtype_bytes(s.model.dtype)),
                     outside = double(s.sequences) * double(s.stream_tokens),
                     inside = double(s.sequences) * double(s.region_tokens);
        heads = t.q, o = inside * double(s.heads * l.v_dim) * e;
        up = inside * double(s.heads * (l.nope_dim + l.v_dim)) * e;
        q = outside * double(l.q_rank) * e, kv = outside * double(l.kv_rank) * e;
        key = outside * double(l.rope_dim) * e, all = q + kv + key;
        inside_q = l.q_rank > 0 ? inside * double(l.q_rank) * e : t.whole;
        inside_kv = inside * double(l.kv_rank) * e, inside_key = inside * double(l.rope_dim) * e;
        x = t.stream;
        const bool whole = !s.gathers() || s.keeps_gathered;
        input_kv = whole ? inside_kv : kv;
        input_q = l.q_rank > 0           ? (whole ? inside_q : q)
                  : s.gathers() && whole ? inside_q
                                         : 0;  // it is the same tensor as x
        statistics = outside * 4 * (l.q_rank > 0 ? 2 : 1);
    }
    bool again(const LocalSizes& s) const {
        return s.model.recompute.of(0) == Recompute::selective;
    }
    // Of the latents, from forward to backward; then of all that attention keeps.
    double kept_latents(const LocalSizes& s) const {
        return q + kv + statistics + (again(s) ? key : input_q + input_kv);
    }
    double kept(const LocalSizes& s, const TensorBytes& t) const {
        return kept_latents(s) + o + t.lse + (again(s) ? 0 : 3 * heads + t.scores);
    }
    // From a backward of inputs to that of weights.
    double for_weights(const TensorBytes& t) const {
        return x + all + input_q + heads + input_kv + up + o + t.whole;
    }
    // What a forward holds at most before o_proj: when the heads are made, or when o is cut.
    double in_forward(const LocalSizes& s) const {
        return kept_latents(s) + std::max(3 * heads + up + inside_key, 4 * heads + o);
    }
};

using Terms = std::vector<std::pair<std::string, double>>;
using AddMoment = std::function<void(const char* when, Terms terms)>;

// What is held besides a layer's attention: each with its name, and with a split backward what the
// parts behind it keep for their weights.
struct HeldBesides {
    std::pair<std::string, double> others, norm, mlp_for_weights;
    double dy, dy_for_weights;  // when o_proj begins; that it keeps besides dy
};

// The moments of attention's backward.
inline void add_latent_moments(const LocalSizes& s, const TensorBytes& t,
                               const HeldBesides& besides, const AddMoment& add) {
    const LatentBytes l(s, t);
    const bool naive = s.model.attention == AttentionKind::naive, split = s.split_backward;
    const double padded_o = naive ? 0 : l.heads, o_for_weights = split ? l.o : 0,
                 latents = l.q + l.kv + l.statistics + l.input_q + l.input_kv;
    // dx before and after its sum, and the input if it is gathered again meanwhile.
    const auto dx = [&](double inside, double outside) {
        const bool again = s.gathers() && !s.keeps_gathered && s.gathers_beside && !split;
        return inside + (s.gathers() ? outside : 0) + (again ? inside : 0);
    };
    const auto moment = [&](const char* when, Terms terms) {
        const Terms all = {besides.others, besides.norm, besides.mlp_for_weights};
        terms.insert(terms.begin(), all.begin(), all.end());
        add(when, std::move(terms));
    };
    const std::pair<std::string, double> dy{"dy", t.stream + besides.dy_for_weights},
        o{"o, for its projection's weight", o_for_weights};
    moment(
        "in the backward of o_proj",
        {{"what attention keeps", l.kept(s, t)}, {"dy", besides.dy}, {"the gradient of o", l.o}});
    moment("where o and its gradient are padded",
           {{"what attention keeps", l.kept(s, t) - l.o},
            dy,
            o,
            {"o, padded", padded_o},
            {"its gradient, before and after", l.o + l.heads}});
    if (l.again(s))
        moment("where q, k and v have been made again",
               {{"the latents, and the log-sum-exp", latents + t.lse},
                dy,
                o,
                {"o and its gradient, padded", padded_o + l.heads},
                {"q, k, v, and what k and v are made of", 3 * l.heads + l.up + l.inside_key}});
    moment("in the backward of attention",
           {{"the latents", latents},
            {"q, k, v and log-sum-exp", 3 * l.heads + t.lse},
            {"probabilities", t.scores},
            dy,
            o,
            {"the gradient of o, and delta", l.heads + t.lse},
            {"dq, dk, dv", 3 * l.heads},
            {"what this attention holds besides", s.attention_besides.backward}});
    moment("in the backward of kv_b_proj", {{"the latents", latents},
                                            dy,
                                            o,
                                            {"dq, and the gradients of kv_b and the key",
                                             l.heads + l.up + (s.gathers() ? l.key : l.inside_key)},
                                            {"dx", dx(l.inside_kv, l.kv)}});
    moment("in the backward of q_b_proj",
           {{"the queries' latent", l.q + l.statistics + l.input_q},
            dy,
            o,
            {"what kv_b keeps for its weight", split ? l.input_kv + l.up : 0},
            {"dq, and the gradients of the other latents", l.heads + l.kv + l.key},
            {"dx", dx(l.inside_q, l.q > 0 ? l.q : t.stream)}});
    moment("in the backward of q_a_proj and kv_a_proj",
           {dy,
            o,
            {"what q_b and kv_b keep for their weights",
             split ? l.input_q + l.heads + l.input_kv + l.up : 0},
            {"the latents' gradients", l.all},
            {"dx, or these gradients apart", std::max(t.stream, l.all)},
            {"dx of q_proj", l.q > 0 ? 0 : t.stream}});
}

}  // namespace ultrascale
