#include "checkpoint_notes.h"

#include <cstring>
#include <filesystem>
#include <set>

#include "checkpoint.h"
#include "checkpoint_experts.h"
#include "checkpoint_gpt2.h"

namespace ultrascale {

namespace fs = std::filesystem;

namespace {

// The names of all weights of a model, and of other tensors that a file may hold without effect.
class Names {
public:
    explicit Names(const LlamaConfig& config) : config_(config) {
        for (const char* name : {"model.embed_tokens", "model.norm", "lm_head"}) add(name);
        if (config.gpt) add("model.embed_positions");
        for (int64_t layer = 0; layer < config.layers; ++layer) add_layer(layer);
    }
    bool contains(const std::string& name) const {
        return all_.contains(name) || all_.contains(other_expert_name(name)) ||
               name.ends_with(".rotary_emb.inv_freq") ||
               (config_.gpt && name.ends_with(".attn.bias"));  // GPT-2's causal mask
    }

private:
    void add(const std::string& part) {
        all_.insert(part + ".weight");
        if (config_.gpt) all_.insert(part + ".bias");
    }
    void add_layer(int64_t index) {
        const std::string layer = fmt::format("model.layers.{}.", index);
        for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) add(layer + norm);
        add_attention(layer + "self_attn.");
        if (config_.head_norms) add(layer + "self_attn.q_norm"), add(layer + "self_attn.k_norm");
        if (!config_.has_experts(index)) return add_swiglu(layer + "mlp.");
        const ExpertsConfig& e = config_.experts;
        add(layer + "mlp.gate");
        for (int64_t i = 0; i < e.count; ++i)
            add_swiglu(fmt::format("{}mlp.experts.{}.", layer, i));
        if (e.shared > 0) add_swiglu(layer + "mlp.shared_experts.");
        if (e.selection_bias) all_.insert(layer + "mlp.gate.e_score_correction_bias");
    }
    void add_attention(const std::string& path) {
        std::vector<const char*> names = {"q_proj", "k_proj", "v_proj", "o_proj"};
        if (config_.latent) names = {"kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", "o_proj"};
        if (config_.latent.q_rank > 0)
            names.insert(names.end(), {"q_a_proj", "q_a_layernorm", "q_b_proj"});
        else if (config_.latent)
            names.push_back("q_proj");
        for (const char* name : names) add(path + name);
    }
    void add_swiglu(const std::string& path) {
        for (const char* of : {"gate", "up", "down"}) add(fmt::format("{}{}_proj", path, of));
    }

    const LlamaConfig& config_;
    std::set<std::string> all_;
};

bool is_read(const Names& names, const std::string& name, const Shape& shape) {
    bool stacked = false, all = true;  // experts: the matrices of a stack
    unstack_experts(name, shape, [&](const std::string& part, int64_t, int64_t) {
        stacked = true, all = all && names.contains(part);
    });
    return stacked ? all : names.contains(name);
}

// "a, b, c and 5 more"
std::string list(const std::vector<std::string>& names) {
    constexpr size_t shown = 8;
    std::string text;
    for (size_t i = 0; i < std::min(names.size(), shown); ++i)
        text += (i == 0 ? "" : ", ") + printable(names[i]);
    if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
    return text;
}

}  // namespace

// An estimate needs no weights.
static bool has_weights(const std::string& dir) {
    std::error_code ignored;
    return fs::exists(dir + "/model.safetensors", ignored) ||
           fs::exists(dir + "/model.safetensors.index.json", ignored);
}

bool has_own_head(const std::string& dir) {
    if (!has_weights(dir)) return false;
    const Safetensors file = Safetensors::directory(dir);
    const auto head = file.entries().find("lm_head.weight"),
               embedding = file.entries().find("model.embed_tokens.weight");
    if (head == file.entries().end() || embedding == file.entries().end()) return false;
    const Safetensors::Entry &a = head->second, &b = embedding->second;
    return a.dtype != b.dtype || a.shape != b.shape ||
           std::memcmp(a.data, b.data, size_t(a.bytes)) != 0;
}

std::vector<std::string> checkpoint_notes(const std::string& path, const LlamaConfig& config,
                                          bool loaded) {
    std::vector<std::string> notes, fields, tensors;
    const bool tied = load_config(path, &fields).tied;
    if (!fields.empty())
        notes.push_back(
            fmt::format("{}: config.json has fields that are ignored here; if they change the "
                        "model, its results will differ: {}",
                        printable(path), list(fields)));
    if (!loaded || !has_weights(path)) return notes;
    if (tied && !config.tied)
        notes.push_back(
            fmt::format("{}: config.json ties the output head to the embedding, but lm_head.weight "
                        "differs from it: they are not tied",
                        printable(path)));
    const Names names(config);
    Safetensors file = Safetensors::directory(path);
    add_gpt2_names(file);
    for (const auto& [name, entry] : file.entries())
        if (!is_read(names, name, entry.shape)) tensors.push_back(name);
    if (!tensors.empty())
        notes.push_back(fmt::format("{}: has tensors that this model does not have: {}",
                                    printable(path), list(tensors)));
    return notes;
}

}  // namespace ultrascale
