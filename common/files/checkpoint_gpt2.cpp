#include "checkpoint_gpt2.h"

#include <algorithm>

namespace ultrascale {

using nlohmann::ordered_json;

// ---- config.json --------------------------------------------------------------------------------

LlamaConfig read_gpt2(const Fields& fields) {
    fields.only("activation_function", "gelu_new");
    fields.only("scale_attn_weights", true);
    fields.only("scale_attn_by_inverse_layer_idx", false);
    fields.only("reorder_and_upcast_attn", false);
    fields.understands({"resid_pdrop", "embd_pdrop", "attn_pdrop", "n_ctx", "summary_activation",
                        "summary_first_dropout", "summary_proj_to_labels", "summary_type",
                        "summary_use_proj"});
    LlamaConfig c{};
    c.gpt = true;
    c.layers = fields.integer("n_layer", 12);
    c.hidden = fields.integer("n_embd", 768);
    c.heads = c.kv_heads = fields.integer("n_head", 12);
    if (c.heads < 1 || c.hidden % c.heads != 0)
        user_error("{}: n_embd = {} is not a multiple of n_head = {}", fields.where(), c.hidden,
                   c.heads);
    c.head_dim = c.hidden / c.heads;
    c.ffn = fields.integer("n_inner", 4 * c.hidden);
    c.vocab = fields.integer("vocab_size", 50257);
    c.max_positions = fields.integer("n_positions", 1024);
    c.norm_eps = fields.number("layer_norm_epsilon", 1e-5);
    c.tied = !fields.find("tie_word_embeddings") || fields.flag("tie_word_embeddings");
    return c;
}

std::string gpt2_config_json(const LlamaConfig& c, const char* dtype) {
    const ordered_json config = {
        {"architectures", {"GPT2LMHeadModel"}},
        {"model_type", "gpt2"},
        {"vocab_size", c.vocab},
        {"n_positions", c.max_positions},
        {"n_embd", c.hidden},
        {"n_layer", c.layers},
        {"n_head", c.heads},
        {"n_inner", c.ffn},
        {"activation_function", "gelu_new"},
        {"resid_pdrop", 0.0},
        {"embd_pdrop", 0.0},
        {"attn_pdrop", 0.0},
        {"layer_norm_epsilon", c.norm_eps},
        {"initializer_range", c.init_std},
        {"scale_attn_weights", true},
        {"tie_word_embeddings", c.tied},
        {"bos_token_id", nullptr},  // there are no special tokens
        {"eos_token_id", nullptr},
        {"torch_dtype", dtype},  // transformers 4
        {"dtype", dtype},
        {"use_cache", true},
    };
    return config.dump(2) + "\n";
}

// ---- weights ------------------------------------------------------------------------------------

namespace {

struct Names {
    const char* file;
    std::vector<std::string> ours;  // several: their rows are one below the other
    bool linear = false;            // its weight is stored transposed
};
const std::vector<Names>& names_of_model() {
    static const std::vector<Names> all = {{"wte", {"model.embed_tokens"}},
                                           {"wpe", {"model.embed_positions"}},
                                           {"ln_f", {"model.norm"}}};
    return all;
}
const std::vector<Names>& names_of_layer() {
    static const std::vector<Names> all = {
        {"ln_1", {"input_layernorm"}},
        {"attn.c_attn", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}, true},
        {"attn.c_proj", {"self_attn.o_proj"}, true},
        {"ln_2", {"post_attention_layernorm"}},
        {"mlp.c_fc", {"mlp.up_proj"}, true},
        {"mlp.c_proj", {"mlp.down_proj"}, true}};
    return all;
}

// Calls visit(name in the file, names here, whether it is a linear's weight) for all tensors of
// `layers` layers.
template <class Visit>
void for_each_tensor(int64_t layers, Visit visit) {
    const auto all = [&](const std::vector<Names>& names, const std::string& before,
                         const std::string& ours_before) {
        for (const Names& n : names)
            for (const char* end : {".weight", ".bias"}) {
                std::vector<std::string> ours;
                for (const std::string& name : n.ours) ours.push_back(ours_before + name + end);
                visit(before + n.file + end, ours, n.linear && end == std::string(".weight"));
            }
    };
    all(names_of_model(), "", "");
    for (int64_t i = 0; i < layers; ++i)
        all(names_of_layer(), fmt::format("h.{}.", i), fmt::format("model.layers.{}.", i));
}

// The number of layers. `has` says whether there is a tensor of a name: `before`, a layer's number
// and `after`.
template <class Has>
int64_t count_layers(const Has& has, const std::string& before, const std::string& after) {
    int64_t layers = 0;
    while (has(fmt::format("{}{}{}", before, layers, after))) ++layers;
    return layers;
}

}  // namespace

void add_gpt2_names(Safetensors& file) {
    const auto has = [&](const std::string& name) { return file.contains(name); };
    for (const std::string prefix : {"transformer.", ""})  // the published file has none
        for_each_tensor(
            count_layers(has, prefix + "h.", ".ln_1.weight"),
            [&](const std::string& name, const std::vector<std::string>& ours, bool transposed) {
                if (!has(prefix + name)) return;
                file.add_parts(ours, prefix + name, transposed);
            });
}

std::vector<FileTensor> gpt2_tensors(const std::vector<std::string>& ours) {
    std::vector<FileTensor> tensors;
    const auto has = [&](const std::string& name) {
        return std::ranges::binary_search(ours, name);
    };
    for_each_tensor(
        count_layers(has, "model.layers.", ".input_layernorm.weight"),
        [&](const std::string& name, const std::vector<std::string>& parts, bool transposed) {
            if (has(parts.front())) tensors.push_back({"transformer." + name, parts, transposed});
        });
    if (has("lm_head.weight")) tensors.push_back({"lm_head.weight", {"lm_head.weight"}});
    return tensors;
}

}  // namespace ultrascale
