#include "estimate.h"

#include <algorithm>

#include "core/error.h"
#include "memory_formulas.h"

namespace ultrascale {
namespace {

// The FLOPs of a forward, per token.
double attention_flops(const LlamaConfig& c, int64_t seq) {
    return 2 * double(c.layers) * double(c.q_size() + c.o_size()) * double(seq);
}
// Latent attention's products that make the heads of the latents, for every layer.
double latent_flops(const LlamaConfig& c) {
    const LatentConfig& l = c.latent;
    const double q = double(l.q_rank > 0 ? l.q_rank : c.hidden) * double(c.q_size()),
                 kv = double(l.kv_rank * c.heads * (l.nope_dim + l.v_dim));
    return l ? 2 * double(c.layers) * (q + kv) : 0;
}
double recomputed_attention_flops(const StepShape& s) {
    const int64_t L = s.config.layers;
    double layers = double(s.model.recompute.count(Recompute::full, L));
    if (s.model.attention == AttentionKind::flash)
        layers += double(L) / 2;  // its backward computes the scores again
    else
        layers += double(s.model.recompute.count(Recompute::selective, L));
    return attention_flops(s.config, s.seq) / double(L) * layers;
}

}  // namespace

LocalSizes local_sizes(const StepShape& s) {
    const LlamaConfig& c = s.config;
    return {.model = s.model,
            .layers = c.layers,
            .hidden = c.hidden,
            .heads = c.heads,
            .kv_heads = c.kv_heads,
            .head_dim = c.head_dim,
            .head_norms = c.head_norms,
            .gpt = c.gpt,
            .latent = c.latent,
            .features = c.ffn,
            .vocabulary = c.vocab,
            .sequences = s.micro_batch,
            .seq = s.seq,
            .stream_tokens = s.seq,
            .region_tokens = s.seq};
}

int64_t muon_numel(const LlamaConfig& c) {
    return c.layers * (attention_numel(c) + c.hidden * c.ffn_matrices() * c.ffn);
}

void add_parameters(Prediction& prediction, int64_t parameters, const StepShape& s,
                    int64_t matrices) {
    const auto bytes = [&](int64_t each) {
        return int64_t(std::min(double(parameters) * double(each), 9e18));
    };
    prediction.memory +=
        {.parameters = bytes(dtype_bytes(s.model.dtype)),
         .gradients = bytes(dtype_bytes(s.grad_dtype)),
         .optimizer = bytes(optimizer_bytes(s.model.dtype)) - (s.muon ? muon_saves * matrices : 0)};
}

void add_activations(Prediction& prediction, const LocalSizes& sizes) {
    prediction.memory += {.peak_activations = peak_activation_bytes(sizes)};
}

void add_gradient_sums(Prediction& prediction, const ParameterList& parameters, const Group& ranks,
                       DType grad_dtype) {
    if (ranks.ranks == 1) return;
    prediction.communication.add(ranks, Collective::all_reduce, int64_t(parameters.size()),
                                 parameters.local_numel() * dtype_bytes(grad_dtype));
}

void add_flops(Prediction& prediction, const StepShape& s, int64_t active) {
    prediction.flops_per_token += model_flops_per_token(s.config, active, s.seq);
    prediction.recomputed_flops_per_token += recomputed_flops_per_token(s, active);
    prediction.attention_flops_per_token += 3 * attention_flops(s.config, s.seq);
    prediction.recomputed_attention_flops_per_token += recomputed_attention_flops(s);
    prediction.seen = share_seen(s.config, s.seq);
}

Prediction predict_one_device(const StepShape& s, int64_t parameters) {
    Prediction prediction;
    add_parameters(prediction, parameters, s, muon_numel(s.config));
    add_activations(prediction, local_sizes(s));
    add_flops(prediction, s, parameters);
    return prediction;
}

MemoryEstimate estimate_memory(const StepShape& s) {
    return predict_one_device(s, parameter_count(s.config)).memory;
}

static std::string out_of_memory(const MemoryEstimate& m, int64_t limit,
                                 const std::string& advice) {
    const std::string buffers =
        m.peak_communication > 0
            ? fmt::format(", communication buffers {}", format_bytes(double(m.peak_communication)))
            : "";
    return fmt::format(
        "out of memory: predicted parameters {}, gradients {}, optimizer {}, activations {}{} do "
        "not fit in {}; {}",
        format_bytes(double(m.parameters)), format_bytes(double(m.gradients)),
        format_bytes(double(m.optimizer)), format_bytes(double(m.peak_activations)), buffers,
        format_bytes(double(limit)), advice);
}

void check_fits(const MemoryEstimate& m, int64_t limit, const Advice& advice) {
    if (m.total() > limit) user_error("{}", out_of_memory(m, limit, advice()));
}

void check_fits_everywhere(const MemoryEstimate& own, int64_t limit, const Advice& advice) {
    const Communicator& world = Communicator::world();
    const int64_t too_much = own.total() > limit ? own.total() : 0;
    const std::vector<std::string> ranks = world.gather_strings(std::to_string(too_much));
    const auto most = std::ranges::max_element(
        ranks, {}, [](const std::string& rank) { return std::stoll(rank); });
    if (*most == "0") return;
    const std::string error = out_of_memory(own, limit, advice());
    user_error("{}", world.gather_strings(error)[size_t(most - ranks.begin())]);
}

std::string what_would_fit(const StepShape& shape, int64_t limit) {
    std::string found;
    const auto consider = [&](const StepShape& changed, const std::string& options) {
        if (estimate_memory(changed).total() <= limit)
            found += (found.empty() ? "" : ", or ") + options;
    };
    // Tries 1, 1/2, 1/4, ... of each size until it fits, and recomputation alone.
    for (const Recompute& recompute : {shape.model.recompute, Recompute(Recompute::full)}) {
        StepShape changed = shape;
        changed.model.recompute = recompute;
        const std::string also = recompute == shape.model.recompute ? "" : "--recompute full ";
        if (!also.empty()) consider(changed, "--recompute full");
        if (!found.empty()) break;
        while (changed.micro_batch > 1 && estimate_memory(changed).total() > limit)
            changed.micro_batch /= 2;
        consider(changed, fmt::format("{}--micro-batch {}", also, changed.micro_batch));
        while (changed.seq > 1 && estimate_memory(changed).total() > limit) changed.seq /= 2;
        if (found.empty())
            consider(changed, fmt::format("{}--micro-batch 1 --seq {}", also, changed.seq));
    }
    return found.empty() ? "weights, gradients and optimizer alone do not fit: a smaller --model "
                           "or fewer --layers would"
                         : "these options would: " + found;
}

double book_activations(const StepShape& shape) {
    double bytes = 0;
    for (const auto kind : {Recompute::none, Recompute::selective, Recompute::full}) {
        StepShape layers = shape;  // of this kind
        layers.config.layers = shape.model.recompute.count(kind, shape.config.layers);
        layers.model.recompute = kind;
        MemorySettings settings;
        settings.set(layers);
        if (layers.config.layers > 0) bytes += MemoryFormulas(settings).book_activations;
    }
    return bytes;
}

int64_t book_bytes_per_parameter(const StepShape& s) {
    return s.model.dtype != DType::fp32 && s.grad_dtype == DType::fp32 ? 20 : 16;
}

// A GPT's positions are looked up; nothing is multiplied with them.
static double multiplied(const LlamaConfig& c, int64_t active) {
    return double(active - (c.gpt ? c.max_positions * c.hidden : 0));
}

double model_flops_per_token(const LlamaConfig& c, int64_t active, int64_t seq) {
    return 6 * multiplied(c, active) + 3 * attention_flops(c, seq);
}

double share_seen(const LlamaConfig& c, int64_t seq) {
    if (c.window == 0 && c.prefix == 0) return 0.5;
    return attended_pairs(c, seq) / (double(seq) * double(seq));
}

double recomputed_flops_per_token(const StepShape& s, int64_t active) {
    const LlamaConfig& c = s.config;
    const Recompute& again = s.model.recompute;
    const int64_t L = c.layers;
    const double in_layers = multiplied(c, active) - double(c.vocab * c.hidden * (c.tied ? 1 : 2) +
                                                            c.hidden * (c.gpt ? 2 : 1));
    return recomputed_attention_flops(s) +
           (2 * in_layers * double(again.count(Recompute::full, L)) +
            latent_flops(c) * double(again.count(Recompute::selective, L))) /
               double(L);
}

}  // namespace ultrascale
