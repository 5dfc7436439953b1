#include "checkpoint_experts.h"

#include "checkpoint_latent.h"

namespace ultrascale {

using json = nlohmann::json;
using nlohmann::ordered_json;
using ops::RouterScore;

namespace {

int64_t number_of_experts(const Fields& fields) {
    for (const char* name : {"num_local_experts", "num_experts", "n_routed_experts"})
        if (fields.find(name)) return fields.integer(name);
    user_error("{}: lacks the field \"num_local_experts\" (or \"num_experts\")", fields.where());
}

// Qwen lists its dense layers; only the first ones can be dense here.
int64_t first_dense_of_qwen(const Fields& fields) {
    fields.only("decoder_sparse_step", 1);
    const json* dense = fields.find("mlp_only_layers");
    if (!dense) return 0;
    json first = json::array();
    for (size_t i = 0; i < dense->size(); ++i) first.push_back(i);
    if (!dense->is_array() || *dense != first)
        user_error("{}: mlp_only_layers = {} is not supported; the first layers are, [0, 1, ...]",
                   fields.where(), printable(dense->dump()));
    return int64_t(dense->size());
}

// Only DeepSeek-V3's code always has the same router and does not write what it is.
std::string text_of(const Fields& fields, const char* field, const char* otherwise) {
    const json* value = fields.find(field);
    return !value ? otherwise : value->is_string() ? value->get<std::string>() : value->dump();
}
std::string topk_method(const Fields& fields, const std::string& model_type) {
    return text_of(fields, "topk_method", model_type == "deepseek_v3" ? "noaux_tc" : "greedy");
}

// The loss that balances the experts' loads. transformers computes its own if the router's logits
// are an output, whatever the coefficient is; DeepSeek's code computes it whenever aux_loss_alpha
// is not 0. (For losses that DeepSeek's code does not have, this project writes transformers'
// fields into a config.json of DeepSeek's type; the training state then says which loss it was.)
void read_balance(const Fields& fields, const std::string& model_type, ExpertsConfig& e) {
    const double coefficient = fields.number("router_aux_loss_coef", 0.001);
    const bool adds_loss = fields.flag("output_router_logits");
    if (adds_loss) e.aux_coefficient = coefficient;
    if (!model_type.starts_with("deepseek")) {
        if (adds_loss) e.aux = Aux::hf;
        return;
    }
    const bool by_bias = topk_method(fields, model_type) == "noaux_tc";
    const bool in_transformers_fields =
        fields.find("output_router_logits") && !fields.find("aux_loss_alpha");
    const double alpha = fields.number("aux_loss_alpha", by_bias ? 0 : 0.001);
    const json* by_sequence = fields.find("seq_aux");
    const bool sequence = !by_sequence || fields.flag("seq_aux");
    if (!in_transformers_fields)
        e.aux_coefficient = alpha, e.aux = sequence ? Aux::sequence : Aux::megatron;
}

void read_deepseek(const Fields& fields, const std::string& model_type, ExpertsConfig& e) {
    const bool v2 = model_type == "deepseek_v2", v3 = model_type == "deepseek_v3";
    fields.only("moe_layer_freq", 1);
    if (v2) fields.only("norm_topk_prob", false);
    e.ffn = fields.integer("moe_intermediate_size");
    e.shared = fields.integer("n_shared_experts", 0);
    e.router.renormalise = fields.find("norm_topk_prob") ? fields.flag("norm_topk_prob") : v3;
    e.router.scaling = fields.number("routed_scaling_factor", 1);
    e.router.groups = fields.integer("n_group", 1);
    e.router.top_groups = fields.integer("topk_group", e.router.groups);
    if (v2) e.router.groups = e.router.top_groups = 1;  // "greedy" has no groups
    const std::string score = text_of(fields, "scoring_func", v3 ? "sigmoid" : "softmax"),
                      method = topk_method(fields, model_type);
    if (score != "softmax" && score != "sigmoid")
        user_error("{}: scoring_func = {} is not supported; \"softmax\" and \"sigmoid\" are",
                   fields.where(), printable(fields.find("scoring_func")->dump()));
    if (score == "sigmoid") e.router.score = RouterScore::sigmoid;
    if (method != "greedy" && method != "noaux_tc")
        user_error("{}: topk_method = {} is not supported; \"greedy\" and \"noaux_tc\" are",
                   fields.where(), printable(fields.find("topk_method")->dump()));
    e.selection_bias = method == "noaux_tc";
}

}  // namespace

void read_experts(const Fields& fields, const std::string& model_type, LlamaConfig& config) {
    ExpertsConfig& e = config.experts;
    if (model_type.starts_with("deepseek"))
        e.first_dense =
            fields.integer("first_k_dense_replace", model_type == "deepseek_v3" ? 3 : 0);
    if (is_latent(model_type) && e.first_dense >= config.layers) {  // all layers are dense
        e = {};
        fields.understands({"num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
                            "n_routed_experts", "num_local_experts", "norm_topk_prob", "n_group",
                            "topk_group", "topk_method", "scoring_func", "moe_layer_freq",
                            "routed_scaling_factor", "output_router_logits", "aux_loss_alpha",
                            "seq_aux", "router_aux_loss_coef"});
        return;
    }
    e.count = number_of_experts(fields);
    if (e.count < 1)
        user_error("{}: the number of experts = {} is not positive", fields.where(), e.count);
    e.router.top_k = fields.integer("num_experts_per_tok");
    read_balance(fields, model_type, e);
    if (model_type.starts_with("deepseek")) return read_deepseek(fields, model_type, e);
    if (model_type == "mixtral") {
        config.window = fields.integer("sliding_window", 0);
        fields.only("router_jitter_noise", 0.0);
        e.ffn = config.ffn;
        return;
    }
    fields.only("use_sliding_window", false);
    fields.understands({"sliding_window", "max_window_layers"});  // only with it
    config.head_norms = true;
    e.ffn = fields.integer("moe_intermediate_size");
    e.router.renormalise = fields.flag("norm_topk_prob");
    e.first_dense = first_dense_of_qwen(fields);
}

void write_experts(ordered_json& config, const LlamaConfig& c) {
    const ExpertsConfig& e = c.experts;
    const std::string type = model_type(c);
    if (!c.latent) {  // write_latent has written them
        config["model_type"] = type;
        config["architectures"] = {type == "mixtral"     ? "MixtralForCausalLM"
                                   : type == "qwen3_moe" ? "Qwen3MoeForCausalLM"
                                                         : "DeepseekForCausalLM"};
    }
    config["num_experts_per_tok"] = e.router.top_k;
    // A loss that the model's own code does not have is recorded only in the training state.
    const Aux aux = e.aux.value_or(Aux::hf);
    if (type.starts_with("deepseek") && (aux == Aux::sequence || aux == Aux::megatron)) {
        config["aux_loss_alpha"] = e.aux_coefficient;
        config["seq_aux"] = aux == Aux::sequence;
    } else {
        config["output_router_logits"] = e.aux_coefficient > 0 && aux == Aux::hf;
        config["router_aux_loss_coef"] = e.aux_coefficient;
    }
    if (type == "mixtral") {
        config["num_local_experts"] = e.count;
        config["intermediate_size"] = e.ffn;
        config["router_jitter_noise"] = 0.0;
        if (c.window == 0) config["sliding_window"] = nullptr;
        return;
    }
    config["moe_intermediate_size"] = e.ffn;
    config["norm_topk_prob"] = e.router.renormalise;
    if (type == "qwen3_moe") {
        config["num_experts"] = e.count;  // transformers 5 reads it, too
        config["decoder_sparse_step"] = 1;
        config["mlp_only_layers"] = json::array();
        for (int64_t i = 0; i < e.first_dense; ++i) config["mlp_only_layers"].push_back(i);
        config["use_sliding_window"] = false;
        return;
    }
    config["n_routed_experts"] = e.count;
    config["n_shared_experts"] = e.shared;
    config["first_k_dense_replace"] = e.first_dense;
    config["moe_layer_freq"] = 1;
    config["routed_scaling_factor"] = e.router.scaling;
    config["n_group"] = e.router.groups;
    config["topk_group"] = e.router.top_groups;
    config["scoring_func"] = e.router.score == RouterScore::sigmoid ? "sigmoid" : "softmax";
    config["topk_method"] = e.selection_bias ? "noaux_tc" : "greedy";
}

void unstack_experts(const std::string& name, const std::vector<int64_t>& shape,
                     const AddMatrix& add) {
    const bool gate_up = name.ends_with(".mlp.experts.gate_up_proj"),
               down = name.ends_with(".mlp.experts.down_proj");
    if (shape.size() != 3 || !(gate_up || down) || (gate_up && shape[1] % 2 != 0)) return;
    if (shape[0] > 1024) return;  // no model has so many: a corrupt file
    const std::string layer = name.substr(0, name.rfind(".mlp."));
    const int64_t rows = gate_up ? shape[1] / 2 : shape[1];
    const auto both = [&](int64_t expert, const char* qwen, const char* mixtral, int64_t first) {
        const auto add_as = [&](const char* block, const char* matrix) {
            add(fmt::format("{}.{}.experts.{}.{}.weight", layer, block, expert, matrix), first,
                rows);
        };
        add_as("mlp", qwen), add_as("block_sparse_moe", mixtral);
    };
    for (int64_t e = 0; e < shape[0]; ++e) {
        if (down) both(e, "down_proj", "w2", e * rows);
        if (gate_up) both(e, "gate_proj", "w1", 2 * e * rows);
        if (gate_up) both(e, "up_proj", "w3", (2 * e + 1) * rows);
    }
}

std::string other_expert_name(const std::string& name) {
    struct Convention {
        std::string block, weights[3];
    };
    static const Convention mixtral{".block_sparse_moe.",
                                    {".w1.weight", ".w3.weight", ".w2.weight"}},
        others{".mlp.", {".gate_proj.weight", ".up_proj.weight", ".down_proj.weight"}};
    for (const auto& [from, to] : {std::pair(&mixtral, &others), std::pair(&others, &mixtral)}) {
        const size_t at = name.find(from->block);
        if (at == name.npos) continue;
        const std::string layer = name.substr(0, at), rest = name.substr(at + from->block.size());
        if (rest == "gate.weight") return layer + to->block + rest;
        for (size_t i = 0; i < 3 && rest.starts_with("experts."); ++i)
            if (const std::string& own = from->weights[i]; rest.ends_with(own))
                return layer + to->block + rest.substr(0, rest.size() - own.size()) +
                       to->weights[i];
    }
    return "";
}

}  // namespace ultrascale
