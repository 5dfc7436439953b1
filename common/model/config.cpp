#include "config.h"

#include <fmt/ranges.h>

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace ultrascale {
namespace {

struct Preset {
    const char* name;
    LlamaConfig config;
};

RopeScaling llama3_scaling(double factor) {
    return {RopeScaling::Type::llama3, factor, 1, 4, 8192};
}

// All sizes of nano are divisible by 8 (except for its 4 key-value heads). char has the size of
// Karpathy's character-level Shakespeare model. From gpt2-124m on they are published models;
// moe-16b is DeepSeekMoE 16B (Dai et al. 2024, arXiv 2401.06066).
const std::vector<Preset>& presets() {
    // clang-format off
    static const std::vector<Preset> all = {
        {"nano",
         {.layers = 8, .hidden = 128, .heads = 8, .kv_heads = 4, .head_dim = 16, .ffn = 384,
          .vocab = 256, .default_seq = 128}},
        {"small",
         {.layers = 8, .hidden = 512, .heads = 8, .kv_heads = 4, .head_dim = 64, .ffn = 1536,
          .vocab = 256, .default_seq = 256}},
        {"char",
         {.layers = 6, .hidden = 384, .heads = 6, .kv_heads = 6, .head_dim = 64, .ffn = 1024,
          .vocab = 256, .default_seq = 256}},
        {"nano-moe",
         {.layers = 8, .hidden = 128, .heads = 8, .kv_heads = 4, .head_dim = 16, .ffn = 384,
          .vocab = 256, .default_seq = 128,
          .experts = {.count = 8, .ffn = 96, .router = {.top_k = 2}, .aux_coefficient = 0.01}}},
        {"latent-nano",
         {.layers = 8, .hidden = 128, .heads = 8, .kv_heads = 8, .head_dim = 48, .ffn = 384,
          .vocab = 256, .norm_eps = 1e-6, .default_seq = 128,
          .latent = {.q_rank = 32, .kv_rank = 16, .nope_dim = 32, .rope_dim = 16, .v_dim = 32}}},
        {"gpt-nano",
         {.layers = 8, .hidden = 128, .heads = 8, .kv_heads = 8, .head_dim = 16, .ffn = 512,
          .vocab = 256, .tied = true, .max_positions = 1024, .default_seq = 128, .gpt = true}},
        {"gpt2-124m",
         {.layers = 12, .hidden = 768, .heads = 12, .kv_heads = 12, .head_dim = 64, .ffn = 3072,
          .vocab = 50257, .tied = true, .max_positions = 1024, .default_seq = 1024, .gpt = true}},
        {"smollm-135m",
         {.layers = 30, .hidden = 576, .heads = 9, .kv_heads = 3, .head_dim = 64, .ffn = 1536,
          .vocab = 49152, .tied = true}},
        {"smollm-360m",
         {.layers = 32, .hidden = 960, .heads = 15, .kv_heads = 5, .head_dim = 64, .ffn = 2560,
          .vocab = 49152, .tied = true}},
        {"smollm-1.7b",
         {.layers = 24, .hidden = 2048, .heads = 32, .kv_heads = 32, .head_dim = 64, .ffn = 8192,
          .vocab = 49152, .tied = true}},
        {"llama-3.2-1b",
         {.layers = 16, .hidden = 2048, .heads = 32, .kv_heads = 8, .head_dim = 64, .ffn = 8192,
          .vocab = 128256, .tied = true, .rope_theta = 500000, .rope_scaling = llama3_scaling(32),
          .max_positions = 131072}},
        {"llama-2-7b",
         {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 32, .head_dim = 128, .ffn = 11008,
          .vocab = 32000, .max_positions = 4096, .default_seq = 4096}},
        {"llama-3-8b",
         {.layers = 32, .hidden = 4096, .heads = 32, .kv_heads = 8, .head_dim = 128, .ffn = 14336,
          .vocab = 128256, .rope_theta = 500000, .max_positions = 8192, .default_seq = 4096}},
        {"moe-16b",
         {.layers = 28, .hidden = 2048, .heads = 16, .kv_heads = 16, .head_dim = 128, .ffn = 10944,
          .vocab = 102400, .norm_eps = 1e-6, .max_positions = 4096, .default_seq = 4096,
          .experts = {.count = 64, .ffn = 1408, .shared = 2, .first_dense = 1,
                      .router = {.top_k = 6, .renormalise = false}}}},
        {"llama-3-70b",
         {.layers = 80, .hidden = 8192, .heads = 64, .kv_heads = 8, .head_dim = 128, .ffn = 28672,
          .vocab = 128256, .rope_theta = 500000, .max_positions = 8192, .default_seq = 4096}},
        {"llama-3-405b",
         {.layers = 126, .hidden = 16384, .heads = 128, .kv_heads = 8, .head_dim = 128,
          .ffn = 53248, .vocab = 128256, .rope_theta = 500000, .rope_scaling = llama3_scaling(8),
          .max_positions = 131072, .default_seq = 8192}},
    };
    // clang-format on
    return all;
}

}  // namespace

LlamaConfig preset(const std::string& name) {
    for (const Preset& p : presets())
        if (name == p.name) return p.config;
    user_error("--model {}: no such preset or directory; presets: {}", name,
               fmt::join(preset_names(), ", "));
}

std::vector<std::string> preset_names() {
    std::vector<std::string> names;
    for (const Preset& p : presets()) names.push_back(p.name);
    return names;
}

static void in_range(const char* field, int64_t value, int64_t most, int64_t least = 1) {
    if (value < least || value > most)
        user_error("config: {} = {} is not between {} and {}", field, value, least, most);
}

static void validate_experts(const LlamaConfig& c) {
    const ExpertsConfig& e = c.experts;
    const ops::RouterSettings& r = e.router;
    in_range("the number of experts", e.count, 1024);
    in_range("num_experts_per_tok", r.top_k, e.count);
    in_range("moe_intermediate_size", e.ffn, 100'000'000);
    in_range("n_shared_experts", e.shared, 1024, 0);
    in_range("first_k_dense_replace", e.first_dense, c.layers, 0);
    in_range("n_group", r.groups, e.count);
    in_range("topk_group", r.top_groups, r.groups);
    if (e.count % r.groups != 0)
        user_error("config: {} experts do not divide into n_group = {}", e.count, r.groups);
    if (r.top_groups * (e.count / r.groups) < r.top_k)
        user_error(
            "config: num_experts_per_tok = {}, but topk_group = {} of {} groups have only {} "
            "experts",
            r.top_k, r.top_groups, r.groups, r.top_groups * (e.count / r.groups));
    if (!(r.scaling > 0) || !std::isfinite(r.scaling))
        user_error("config: routed_scaling_factor = {} is not positive", r.scaling);
    if (!(e.aux_coefficient >= 0) || !std::isfinite(e.aux_coefficient))
        user_error("config: router_aux_loss_coef = {} is not 0 or more", e.aux_coefficient);
}

static void validate_latent(const LlamaConfig& c) {
    const LatentConfig& l = c.latent;
    in_range("q_lora_rank", l.q_rank, 1'000'000, 0);
    in_range("kv_lora_rank", l.kv_rank, 1'000'000);
    in_range("qk_nope_head_dim", l.nope_dim, 100'000, 0);
    in_range("qk_rope_head_dim", l.rope_dim, 100'000, 0);
    in_range("v_head_dim", l.v_dim, 100'000);
    if (l.rope_dim % 2 != 0)
        user_error("config: qk_rope_head_dim = {} is odd; rotary embedding rotates pairs",
                   l.rope_dim);
    if (l.v_dim > c.head_dim)
        user_error(
            "config: v_head_dim = {} is larger than qk_nope_head_dim + qk_rope_head_dim = {}: "
            "values are padded to the size of keys",
            l.v_dim, c.head_dim);
    if (c.gpt || c.head_norms || c.kv_heads != c.heads || c.head_dim != l.nope_dim + l.rope_dim)
        user_error(
            "config: latent attention has a key and a value for each head, and no norms of heads");
}

void validate(const LlamaConfig& c) {
    in_range("num_hidden_layers", c.layers, 100'000);
    in_range("hidden_size", c.hidden, 10'000'000);
    in_range("num_attention_heads", c.heads, 100'000);
    in_range("num_key_value_heads", c.kv_heads, 100'000);
    in_range("head_dim", c.head_dim, 100'000);
    in_range("intermediate_size", c.ffn, 100'000'000);
    in_range("vocab_size", c.vocab, 100'000'000);
    if (c.heads % c.kv_heads != 0)
        user_error("config: num_attention_heads = {} is not a multiple of num_key_value_heads = {}",
                   c.heads, c.kv_heads);
    if (c.head_dim % 2 != 0)
        user_error("config: head_dim = {} is odd; rotary embedding rotates pairs of elements",
                   c.head_dim);
    if (c.gpt && (c.kv_heads != c.heads || c.experts.count != 0 || c.head_norms))
        user_error("config: a GPT-2 has as many key-value heads as heads, and no experts");
    if (c.latent) validate_latent(c);
    if (c.experts.count != 0) validate_experts(c);
    if (c.window < 0) user_error("config: sliding_window = {} is negative", c.window);
    if (const std::string type = model_type(c);
        c.window > 0 && type != "mistral" && type != "mixtral")
        user_error(
            "config: a sliding window goes with a Llama (then it is a Mistral) or a Mixtral; "
            "the config.json of a {} cannot say that it has one for all layers",
            type);
    if (c.head_norms && std::string(model_type(c)) != "qwen3_moe")
        user_error(
            "config: norms of q's and k's heads go only with Qwen 3's router: softmax, no groups, "
            "no bias, no scaling factor, no shared experts");
    if (!(c.norm_eps > 0) || !(c.rope_theta > 0))
        user_error("config: rms_norm_eps and rope_theta must be positive");
    // Each size may be in its range although their product exceeds 64 bits.
    const double h = double(c.hidden),
                 widest = double(c.ffn) + double(c.experts.count + c.experts.shared) *
                                              double(std::max<int64_t>(c.experts.ffn, 1)),
                 layer = h * (2 * double(c.q_size()) + 2 * double(c.kv_size()) + 3 * widest);
    if (const double n = double(c.layers) * layer + 2 * h * double(c.vocab); n > 1e15)
        user_error("config: these sizes make {:.1e} parameters", n);
}

void only_llama(const LlamaConfig& c, const std::string& what) {
    if (c.gpt) user_error("{} knows a Llama's parts; this model is a GPT", what);
    if (c.latent) user_error("{} knows a Llama's parts; this model has latent attention", what);
}

int64_t attention_numel(const LlamaConfig& c) {
    const LatentConfig& l = c.latent;
    if (!l) return c.hidden * (2 * c.q_size() + 2 * c.kv_size());
    return c.hidden * l.rank() + (l.q_rank > 0 ? l.q_rank : c.hidden) * c.q_size() +
           l.kv_rank * c.heads * (l.nope_dim + l.v_dim) + c.o_size() * c.hidden;
}

// Counts the parameters of `experts` of the router's experts.
static int64_t count_parameters(const LlamaConfig& c, int64_t experts) {
    if (c.gpt)
        return (c.vocab * (c.tied ? 1 : 2) + c.max_positions) * c.hidden +
               c.layers * (4 * c.hidden * c.q_size() + 2 * c.hidden * c.ffn + 3 * c.q_size() +
                           6 * c.hidden + c.ffn) +
               2 * c.hidden;
    const int64_t h = c.hidden, embeddings = c.vocab * h * (c.tied ? 1 : 2);
    const int64_t attention = attention_numel(c), norms = 2 * h + c.latent.q_rank +
                                                          c.latent.kv_rank +
                                                          (c.head_norms ? 2 * c.head_dim : 0);
    const ExpertsConfig& e = c.experts;
    const int64_t sparse = e.count > 0 ? c.layers - e.first_dense : 0;
    return embeddings + c.layers * (norms + attention) + (c.layers - sparse) * 3 * h * c.ffn +
           sparse * (e.count * h + (experts + e.shared) * 3 * h * e.ffn) + h;
}
int64_t parameter_count(const LlamaConfig& c) { return count_parameters(c, c.experts.count); }
int64_t active_parameter_count(const LlamaConfig& c) {
    return count_parameters(c, c.experts.router.top_k);
}

double attended_pairs(const LlamaConfig& c, int64_t tokens) {
    const double T = double(tokens), P = double(c.prefix),
                 hidden = c.window > 0 ? std::max(T - double(c.window), 0.0) : 0;
    return (T * (T + 1) - hidden * (hidden + 1) + (P > 0 ? P * (P - 1) : 0)) / 2;
}

const char* model_type(const LlamaConfig& c) {
    const ExpertsConfig& e = c.experts;
    const ops::RouterSettings& r = e.router;
    if (c.gpt) return "gpt2";
    if (c.latent) {
        const bool v2 = e.count > 0 && r.score == ops::RouterScore::softmax && !e.selection_bias &&
                        !r.renormalise && r.groups == 1;
        return v2 ? "deepseek_v2" : "deepseek_v3";
    }
    if (e.count == 0) return c.window > 0 ? "mistral" : "llama";
    if (r.score != ops::RouterScore::softmax || r.groups != 1 || r.scaling != 1 ||
        e.selection_bias || e.shared > 0)
        return "deepseek";
    if (c.head_norms) return "qwen3_moe";
    return r.renormalise && e.first_dense == 0 ? "mixtral" : "deepseek";
}

ExpertNames expert_names(const LlamaConfig& config) {
    if (std::string(model_type(config)) == "mixtral") return {"block_sparse_moe", "w1", "w3", "w2"};
    return {"mlp", "gate_proj", "up_proj", "down_proj"};
}

std::vector<float> rope_frequencies(const LlamaConfig& c) {
    const int64_t D = c.latent ? c.latent.rope_dim : c.head_dim;
    std::vector<float> frequencies(D / 2);
    if (c.gpt) return frequencies;
    for (int64_t i = 0; i < D / 2; ++i) {
        double f = std::pow(c.rope_theta, -2.0 * double(i) / double(D));
        if (c.rope_scaling.type == RopeScaling::Type::llama3) {
            // Low frequencies (long wavelengths) are divided by `factor`, high ones are kept, and
            // those in between are interpolated.
            const RopeScaling& s = c.rope_scaling;
            double wavelength = 2 * std::numbers::pi / f,
                   original = double(s.original_max_positions);
            if (wavelength > original / s.low_freq_factor) {
                f /= s.factor;
            } else if (wavelength > original / s.high_freq_factor) {
                double smooth = (original / wavelength - s.low_freq_factor) /
                                (s.high_freq_factor - s.low_freq_factor);
                f = (1 - smooth) * f / s.factor + smooth * f;
            }
        }
        frequencies[i] = float(f);
    }
    return frequencies;
}

}  // namespace ultrascale
