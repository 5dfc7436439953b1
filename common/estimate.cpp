#include "estimate.h"

#include <algorithm>

#include "error.h"

namespace ultrascale {

SavedPerToken saved_per_token(const StepShape& s) {
    const LlamaConfig& c = s.config;
    const int64_t e = dtype_bytes(s.model.dtype);
    const bool naive = s.model.attention == AttentionKind::naive;
    const bool keeps_probabilities = naive && s.model.recompute != Recompute::selective;
    return {
        .norms = 4 * c.hidden * e + 2 * 4,
        .attention = (2 * c.q_size() + 2 * c.kv_size()) * e + (naive ? 0 : 4 * c.heads) + (keeps_probabilities ? c.heads * s.seq * e : 0),
        .mlp = 2 * c.ffn * e};
}

ActivationMoment activation_peak(const StepShape& s) {
    const LlamaConfig& c = s.config;
    // In double: exact up to 2^53 bytes (9 PB), and no overflow where somebody asks for a sequence of 10^12 tokens.
    const double e = double(dtype_bytes(s.model.dtype)), tokens = double(s.micro_batch) * double(s.seq);
    const bool naive = s.model.attention == AttentionKind::naive, full = s.model.recompute == Recompute::full;
    const double h = double(c.hidden) * e, q = double(c.q_size()) * e, kv = double(c.kv_size()) * e,
                 F = double(c.ffn) * e, V = double(c.vocab) * e;  // bytes per token
    const double layer = double(saved_per_token(s).total()), kept = full ? h : layer;
    const double lse = naive ? 0 : 4 * double(c.heads), probabilities = naive ? double(c.heads) * double(s.seq) * e : 0;
    const double before = double(c.layers - 1) * kept;
    const auto terms = [&](std::vector<std::pair<std::string, double>> per_token) {
        for (auto& [what, bytes] : per_token) bytes *= tokens;
        return per_token;
    };
    const std::string others = fmt::format("what forward kept of {} {}", c.layers - 1, full ? "layers: inputs only" : "other layers");

    // Logits are their own gradient; dx comes when the losses (4 bytes) have gone.
    const double chunk = std::min(double(s.model.loss_chunk), tokens);
    ActivationMoment head{"in the output head", terms({{"what forward kept of all layers", before + kept},
                                                       {"the final norm's input, output and rstd; dx", 3 * h + 4}})};
    head.terms.emplace_back(s.model.loss_chunk > 0 ? "logits and losses of a chunk of tokens" : "logits, which become their own gradient",
                            s.model.loss_chunk > 0 ? (V + 4) * chunk : std::max(V, V + 4 - h) * tokens);
    // Full recomputation runs the layer's forward again, to the end: everything is saved, down makes y, dy waits.
    ActivationMoment recomputed{"where a layer's forward has been computed again",
                                terms({{others, before},
                                       {"what this layer's forward keeps", layer},
                                       {"the input of down_proj, its output, and dy", F + 2 * h}})};
    ActivationMoment swiglu{"in the backward of SwiGLU",
                            terms({{others, before},
                                   {"what forward kept of the last layer", layer},
                                   {"dy", h},
                                   {"d(gate, up)", 2 * F},
                                   {"the gradient of down_proj's input, which becomes that input again", F}})};
    // o and its linear's input have gone.
    ActivationMoment attention{"in the backward of attention",
                               terms({{others, before},
                                      {"of the last layer: both norms' inputs, q, k, v and log-sum-exp",
                                       2 * h + 4 + q + 2 * kv + lse + probabilities},
                                      {"dy and the gradient of o", h + q},
                                      {"delta", lse},
                                      {"dq, dk, dv", q + 2 * kv}})};
    ActivationMoment most = std::move(head);
    for (ActivationMoment* moment : {&recomputed, &swiglu, &attention})
        if ((full || moment != &recomputed) && moment->bytes() > most.bytes()) most = std::move(*moment);
    return most;
}

MemoryEstimate estimate_memory(const StepShape& s) {
    const double n = double(parameter_count(s.config));
    const auto bytes = [](double x) { return int64_t(std::min(x, 9e18)); };
    return {.parameters = bytes(n * double(dtype_bytes(s.model.dtype))),
            .gradients = bytes(n * double(dtype_bytes(s.grad_dtype))),
            .optimizer = bytes(n * double(optimizer_bytes(s.model.dtype))),
            .peak_activations = bytes(activation_peak(s).bytes())};
}

void check_fits(const StepShape& shape, int64_t limit) {
    const MemoryEstimate m = estimate_memory(shape);
    if (m.total() > limit) check_fits(m, limit, what_would_fit(shape, limit));
}

void check_fits(const MemoryEstimate& m, int64_t limit, const std::string& advice) {
    if (m.total() <= limit) return;
    const std::string buffers =
        m.peak_communication > 0 ? fmt::format(", communication buffers {}", format_bytes(double(m.peak_communication))) : "";
    user_error("out of memory: predicted parameters {}, gradients {}, optimizer {}, activations {}{} do not fit in {}; {}",
               format_bytes(double(m.parameters)), format_bytes(double(m.gradients)), format_bytes(double(m.optimizer)),
               format_bytes(double(m.peak_activations)), buffers, format_bytes(double(limit)), advice);
}

std::string what_would_fit(const StepShape& shape, int64_t limit) {
    std::string found;
    const auto consider = [&](const StepShape& changed, const std::string& options) {
        if (estimate_memory(changed).total() <= limit) found += (found.empty() ? "" : ", or ") + options;
    };
    // The first of 1, 1/2, 1/4, ... of a size that fits, and what recomputation alone would do.
    for (Recompute recompute : {shape.model.recompute, Recompute::full}) {
        StepShape changed = shape;
        changed.model.recompute = recompute;
        const std::string also = recompute == shape.model.recompute ? "" : "--recompute full ";
        if (!also.empty()) consider(changed, "--recompute full");
        if (!found.empty()) break;
        while (changed.micro_batch > 1 && estimate_memory(changed).total() > limit) changed.micro_batch /= 2;
        consider(changed, fmt::format("{}--micro-batch {}", also, changed.micro_batch));
        while (changed.seq > 1 && estimate_memory(changed).total() > limit) changed.seq /= 2;
        if (found.empty()) consider(changed, fmt::format("{}--micro-batch 1 --seq {}", also, changed.seq));
    }
    return found.empty() ? "weights, gradients and optimizer alone do not: a smaller --model or fewer --layers would"
                         : "these options would: " + found;
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
    if (s.model.attention == AttentionKind::flash)
        flops += attention / 2;  // its backward computes the scores again
    else if (s.model.recompute == Recompute::selective)
        flops += attention;
    if (s.model.recompute == Recompute::full)
        flops += 2 * double(parameter_count(c) - c.vocab * c.hidden * (c.tied ? 1 : 2) - c.hidden) + attention;
    return flops;
}

}  // namespace ultrascale
