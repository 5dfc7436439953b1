// A Llama's configuration (the fields of config.json), and the presets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "router_settings.h"

namespace ultrascale {

struct RopeScaling {
    enum class Type { none, llama3 } type = Type::none;
    double factor = 8, low_freq_factor = 1, high_freq_factor = 4;
    int64_t original_max_positions = 8192;
};

// The losses that balance the experts' loads, in four definitions (06_expert_parallel/4_balance.h).
enum class Aux { hf, switch_transformer, megatron, sequence };

// Layers whose feed-forward is a mixture of experts: a router sends each token to a few SwiGLUs.
struct ExpertsConfig {
    int64_t count = 0;   // E; 0: all layers are dense, and the other fields mean nothing
    int64_t ffn = 0;     // features of an expert
    int64_t shared = 0;  // experts that every token goes to: one SwiGLU of shared * ffn features
    int64_t first_dense = 0;  // this many first layers are dense, with LlamaConfig::ffn features
    ops::RouterSettings router = {};
    // The router chooses experts by their scores plus a bias. Training moves this bias instead of
    // adding a loss (DeepSeek-V3, section 2.1.2).
    bool selection_bias = false;
    double aux_coefficient = 0;   // factor of the loss that balances the experts' loads; 0: none
    std::optional<Aux> aux = {};  // the loss a checkpoint was trained with, if it says so
};

// Latent attention (latent.h). LlamaConfig::head_dim is then nope_dim + rope_dim, and kv_heads is
// heads. The names are those of config.json: q_lora_rank, ..., v_head_dim.
struct LatentConfig {
    int64_t q_rank = 0;                  // numbers of the queries' latent; 0: queries are made of x
    int64_t kv_rank = 0;                 // of the latent of keys and values; 0: no latent attention
    int64_t nope_dim = 0, rope_dim = 0;  // of a query's or key's head: without and with position
    int64_t v_dim = 0;                   // of a value's head
    explicit operator bool() const { return kv_rank > 0; }
    int64_t rank() const { return q_rank + kv_rank + rope_dim; }  // numbers made of x, with k's
};

struct LlamaConfig {
    int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    bool tied = false;  // the output head shares the embedding's weight
    double rope_theta = 10000, norm_eps = 1e-5, init_std = 0.02;
    RopeScaling rope_scaling = {};
    int64_t max_positions = 2048;
    int64_t default_seq = 2048;  // used when --seq is not given
    bool head_norms = false;     // an RMSNorm for each head of q and of k before RoPE (Qwen 3)
    // Attention's masks. window: a token sees so many keys, its own and those before it (Mistral's
    // sliding_window; 0: all). prefix: so many first tokens of a sequence also see each other's
    // later ones (a prefix-LM; 0: none). config.json has no field for it.
    int64_t window = 0, prefix = 0;
    ExpertsConfig experts = {};
    // A GPT-2 (gpt.h) instead of a Llama. It has max_positions learned positions.
    bool gpt = false;
    LatentConfig latent = {};

    // A feed-forward's: gate, up and down of SwiGLU, or up and down.
    int64_t ffn_matrices() const { return gpt ? 2 : 3; }
    int64_t q_size() const { return heads * head_dim; }
    int64_t kv_size() const { return kv_heads * head_dim; }
    int64_t o_size() const { return heads * (latent ? latent.v_dim : head_dim); }
    bool has_experts(int64_t layer) const {
        return experts.count > 0 && layer >= experts.first_dense;
    }
};

// Throws UserError, which names the option or field, if the sizes do not make a model (heads %
// kv_heads, odd head_dim, zero or absurd sizes).
void validate(const LlamaConfig& config);

// Throws UserError if the model is a GPT or has latent attention: `what` ("--demo memory") is
// written for a Llama's parts.
void only_llama(const LlamaConfig& config, const std::string& what);

// The number of parameters, with a tied weight counted once:
//   V h (twice if untied) + L (2 h + h (H D + 2 K D) + H D h + 3 h F) + h
// With head norms a layer has 2 D more; with experts it has E h + (E + shared) 3 h F_e in place of
// 3 h F. (A router's bias is a buffer.) With latent attention a layer's second and third terms are
//   h (Rq + Rkv + R) + Rq + Rkv + Rq H D + Rkv H (P + V) + H V h
// with latents of Rq and Rkv, and heads of P + R = D and V; Rq = 0: h H D for the queries. A tied
// GPT has (V + P) h + L (4 h^2 + 2 h F + 9 h + F) + 2 h with P positions.
int64_t parameter_count(const LlamaConfig& config);
// The elements of a layer's matrices in attention.
int64_t attention_numel(const LlamaConfig& config);
// The parameters that one token uses: those of only k of the E experts.
int64_t active_parameter_count(const LlamaConfig& config);

// The pairs of a query and a key that it sees in a sequence of T tokens (documents may hide some of
// them): the causal ones, without those behind the window, and with those inside the prefix:
//   T (T + 1) / 2 - (T - W) (T - W + 1) / 2 + P (P - 1) / 2
double attended_pairs(const LlamaConfig& config, int64_t T);

// "llama", "mistral" (with a window), "gpt2", "mixtral", "qwen3_moe", "deepseek", "deepseek_v2" or
// "deepseek_v3": the model_type of its config.json. A model with experts that is neither Mixtral's
// nor Qwen 3's is written as DeepSeek's; with latent attention as DeepSeek-V2's or V3's, which
// differ in the router.
const char* model_type(const LlamaConfig& config);
// The names that this model_type gives to a layer's experts: "model.layers.3.BLOCK.gate.weight",
// "model.layers.3.BLOCK.experts.5.GATE.weight", and the latter also with "up" and "down". Shared
// experts are "model.layers.3.mlp.shared_experts.gate_proj.weight" ..., a router's bias is the
// buffer "model.layers.3.mlp.gate.e_score_correction_bias".
struct ExpertNames {
    const char *block, *gate, *up, *down;
};
ExpertNames expert_names(const LlamaConfig& config);

// "nano", "small", "char", "smollm-135m", ... Throws UserError with the list of names for an
// unknown name.
LlamaConfig preset(const std::string& name);
std::vector<std::string> preset_names();

// Inverse frequencies theta^(-2i/D), i < D/2 (with latent attention R instead of D), rescaled for
// rope_type "llama3" (Llama 3.1's long-context scaling). All zero for a GPT, which does not rotate.
std::vector<float> rope_frequencies(const LlamaConfig& config);

}  // namespace ultrascale
