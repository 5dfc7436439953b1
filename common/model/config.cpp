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

// All sizes of nano are divisible by 8 (except for its 4 key-value heads); char has the size of
// Karpathy's character-level Shakespeare model; from smollm-135m on they are published models.
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

void validate(const LlamaConfig& c) {
    auto in_range = [](const char* field, int64_t value, int64_t most) {
        if (value < 1 || value > most)
            user_error("config: {} = {} is not between 1 and {}", field, value, most);
    };
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
    if (!(c.norm_eps > 0) || !(c.rope_theta > 0))
        user_error("config: rms_norm_eps and rope_theta must be positive");
    // Each size may be in its range while their product exceeds 64 bits.
    const double h = double(c.hidden),
                 layer = h * (2 * double(c.q_size()) + 2 * double(c.kv_size()) + 3 * double(c.ffn));
    if (const double n = double(c.layers) * layer + 2 * h * double(c.vocab); n > 1e15)
        user_error("config: these sizes make {:.1e} parameters", n);
}

int64_t parameter_count(const LlamaConfig& c) {
    int64_t embeddings = c.vocab * c.hidden * (c.tied ? 1 : 2);
    int64_t attention = c.hidden * (c.q_size() + 2 * c.kv_size()) + c.q_size() * c.hidden;
    int64_t feed_forward = 3 * c.hidden * c.ffn;
    return embeddings + c.layers * (2 * c.hidden + attention + feed_forward) + c.hidden;
}

std::vector<float> rope_frequencies(const LlamaConfig& c) {
    std::vector<float> frequencies(c.head_dim / 2);
    for (int64_t i = 0; i < c.head_dim / 2; ++i) {
        double f = std::pow(c.rope_theta, -2.0 * double(i) / double(c.head_dim));
        if (c.rope_scaling.type == RopeScaling::Type::llama3) {
            // Low frequencies (long wavelengths) are divided by `factor`, high ones kept, those in
            // between interpolated.
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
