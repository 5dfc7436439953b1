// A Llama's configuration (the fields of config.json), and the presets.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ultrascale {

struct RopeScaling {
    enum class Type { none, llama3 } type = Type::none;
    double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
    int64_t original_max_positions = 8192;
};

struct LlamaConfig {
    int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    bool tied = false;  // the output head shares the embedding's weight
    double rope_theta = 10000, norm_eps = 1e-5, init_std = 0.02;
    RopeScaling rope_scaling = {};
    int64_t max_positions = 2048;
    int64_t default_seq = 2048;  // used when --seq is not given

    int64_t q_size() const { return heads * head_dim; }
    int64_t kv_size() const { return kv_heads * head_dim; }
};

// Throws UserError, naming the option or field, if the sizes do not make a model (heads % kv_heads,
// odd head_dim, zero or absurd sizes).
void validate(const LlamaConfig& config);

// The number of parameters, with a tied weight counted once:
//   V h (twice if untied) + L (2 h + h (H D + 2 K D) + H D h + 3 h F) + h
int64_t parameter_count(const LlamaConfig& config);

// "nano", "small", "char", "smollm-135m", ... Throws UserError with the list of names for an
// unknown name.
LlamaConfig preset(const std::string& name);
std::vector<std::string> preset_names();

// Inverse frequencies theta^(-2i/D), i < D/2, rescaled for rope_type "llama3" (Llama 3.1's
// long-context scaling).
std::vector<float> rope_frequencies(const LlamaConfig& config);

}  // namespace ultrascale
