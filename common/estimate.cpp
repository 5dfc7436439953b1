#include "estimate.h"

#include <algorithm>

namespace ultrascale {

SavedPerToken saved_per_token(const StepShape& s) {
    const LlamaConfig& c = s.config;
    const int64_t e = dtype_bytes(s.model.dtype);
    const bool naive = s.model.attention == AttentionKind::naive;
    const bool keeps_probabilities = naive && s.model.recompute != Recompute::selective;
    return {.norms = 4 * c.hidden * e + 2 * 4,
            .attention = (2 * c.q_size() + 2 * c.kv_size()) * e + (naive ? 0 : 4 * c.heads) +
                         (keeps_probabilities ? c.heads * s.seq * e : 0),
            .mlp = 3 * c.ffn * e};
}

MemoryEstimate estimate_memory(const StepShape& s) {
    const LlamaConfig& c = s.config;
    const int64_t e = dtype_bytes(s.model.dtype), n = parameter_count(c), tokens = s.micro_batch * s.seq;
    const bool naive = s.model.attention == AttentionKind::naive, full = s.model.recompute == Recompute::full;
    const int64_t h = c.hidden * e, q = c.q_size() * e, kv = c.kv_size() * e, F = c.ffn * e, V = c.vocab * e;  // bytes per token
    const SavedPerToken saved = saved_per_token(s);
    const int64_t lse = naive ? 0 : 4 * c.heads;
    const int64_t probabilities = naive ? c.heads * s.seq * e : 0;

    // What the layers before the last one keep, while the last one is at work.
    const int64_t before = (c.layers - 1) * (full ? h : saved.total());
    const int64_t layer = saved.total();

    // The moments at which the sum can be highest, in bytes per token.
    //   head: final norm's x, rstd and output, the logits that are their own gradient, and dx
    const int64_t head_rest = before + (full ? h : layer) + 3 * h + 4;
    const int64_t head = head_rest * tokens + (s.model.loss_chunk > 0
                             ? (V + 4) * std::min(s.model.loss_chunk, tokens)
                             : std::max(V, V + 4 - h) * tokens);  // dx comes when the losses (4) have gone
    //   full recomputation has just run the layer's forward again: everything is saved, dy waits, y is not needed
    const int64_t recomputed = full ? before + layer + 2 * h : 0;
    //   backward of SwiGLU: dy, d(gate, up), da in place of the freed input of down
    const int64_t swiglu = before + layer - F + h + 3 * F;
    //   the feed-forward's gradient has become dnormed, the norm makes dx: x, rstd, dy, dnormed, dx
    const int64_t attention_saved = 2 * h + 4 + 2 * q + 2 * kv + lse + (naive && s.model.recompute == Recompute::selective ? 0 : probabilities);
    const int64_t second_norm = before + attention_saved + (h + 4) + 3 * h;
    //   backward of attention: dy, d_o, delta and dq, dk, dv beside q, k, v (o and its linear's input have gone)
    const int64_t attention = before + 2 * h + 4 + q + 2 * kv + lse + probabilities + h + q + lse + (q + 2 * kv);
    //   naive with selective recomputation: the probabilities come back, with an o that nobody needs
    const int64_t naive_again = naive && s.model.recompute == Recompute::selective ? before + 2 * h + 4 + q + 2 * kv + h + q + q + probabilities : 0;
    //   in forward, the probabilities of the layer at work even if they are not kept
    const int64_t naive_forward = naive ? before + 2 * h + 4 + 2 * q + 2 * kv + probabilities : 0;

    const int64_t peak_per_token = std::max({recomputed, swiglu, second_norm, attention, naive_again, naive_forward});
    const bool fp32 = s.model.dtype == DType::fp32;
    return {.parameters = n * e,
            .gradients = n * dtype_bytes(s.grad_dtype),
            .optimizer = n * (fp32 ? 8 : 12),  // two moments, and the master copy of bf16 weights
            .peak_activations = std::max(head, peak_per_token * tokens)};
}

double book_activations(const StepShape& s) {
    const LlamaConfig& c = s.config;
    const double sbh = double(s.seq) * double(s.micro_batch) * double(c.hidden) * double(c.layers);
    if (s.model.recompute == Recompute::full) return 2 * sbh;
    if (s.model.recompute == Recompute::selective) return 34 * sbh;
    return sbh * (34 + 5 * double(c.heads) * double(s.seq) / double(c.hidden));
}

int64_t book_bytes_per_parameter(const StepShape& s) { return s.model.dtype == DType::bf16 && s.grad_dtype == DType::fp32 ? 20 : 16; }

namespace {

double attention_flops(const LlamaConfig& c, int64_t seq) { return 4 * double(c.layers) * double(c.q_size()) * double(seq); }

}  // namespace

double model_flops_per_token(const LlamaConfig& c, int64_t seq) { return 6 * double(parameter_count(c)) + 3 * attention_flops(c, seq); }

double recomputed_flops_per_token(const StepShape& s) {
    const LlamaConfig& c = s.config;
    const double attention = attention_flops(c, s.seq);
    double flops = 0;
    if (s.model.attention == AttentionKind::flash) flops += attention / 2;  // its backward computes the scores again
    else if (s.model.recompute == Recompute::selective) flops += attention;
    if (s.model.recompute == Recompute::full)
        flops += 2 * double(parameter_count(c) - c.vocab * c.hidden * (c.tied ? 1 : 2) - c.hidden) + attention;
    return flops;
}

}  // namespace ultrascale
