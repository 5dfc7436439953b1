#include "checkpoint_experts.h"

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

// Qwen names its dense layers: only the first ones can be dense here.
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

void read_deepseek(const Fields& fields, ExpertsConfig& e) {
    fields.only("moe_layer_freq", 1);
    e.ffn = fields.integer("moe_intermediate_size");
    e.shared = fields.integer("n_shared_experts", 0);
    e.first_dense = fields.integer("first_k_dense_replace", 0);
    e.router.renormalise = fields.flag("norm_topk_prob");
    e.router.scaling = fields.number("routed_scaling_factor", 1);
    e.router.groups = fields.integer("n_group", 1);
    e.router.top_groups = fields.integer("topk_group", e.router.groups);
    const json* score = fields.find("scoring_func");
    if (score && *score != "softmax" && *score != "sigmoid")
        user_error("{}: scoring_func = {} is not supported; \"softmax\" and \"sigmoid\" are",
                   fields.where(), printable(score->dump()));
    if (score && *score == "sigmoid") e.router.score = RouterScore::sigmoid;
    const json* method = fields.find("topk_method");
    if (method && *method != "greedy" && *method != "noaux_tc")
        user_error("{}: topk_method = {} is not supported; \"greedy\" and \"noaux_tc\" are",
                   fields.where(), printable(method->dump()));
    e.selection_bias = method && *method == "noaux_tc";
}

}  // namespace

void read_experts(const Fields& fields, const std::string& model_type, LlamaConfig& config) {
    ExpertsConfig& e = config.experts;
    e.count = number_of_experts(fields);
    if (e.count < 1)
        user_error("{}: the number of experts = {} is not positive", fields.where(), e.count);
    e.router.top_k = fields.integer("num_experts_per_tok");
    // Without this flag transformers computes no auxiliary loss, whatever its coefficient is.
    const double coefficient = fields.number("router_aux_loss_coef", 0.001);
    if (fields.flag("output_router_logits")) e.aux_coefficient = coefficient;
    if (model_type == "deepseek") return read_deepseek(fields, e);
    if (model_type == "mixtral") {
        fields.only("sliding_window", nullptr);
        fields.only("router_jitter_noise", 0.0);
        e.ffn = config.ffn;
        return;
    }
    fields.only("use_sliding_window", false);
    config.head_norms = true;
    e.ffn = fields.integer("moe_intermediate_size");
    e.router.renormalise = fields.flag("norm_topk_prob");
    e.first_dense = first_dense_of_qwen(fields);
}

void write_experts(ordered_json& config, const LlamaConfig& c) {
    const ExpertsConfig& e = c.experts;
    const std::string type = model_type(c);
    config["model_type"] = type;
    config["architectures"] = {type == "mixtral"     ? "MixtralForCausalLM"
                               : type == "qwen3_moe" ? "Qwen3MoeForCausalLM"
                                                     : "DeepseekForCausalLM"};
    config["num_experts_per_tok"] = e.router.top_k;
    config["output_router_logits"] = e.aux_coefficient > 0;
    config["router_aux_loss_coef"] = e.aux_coefficient;
    if (type == "mixtral") {
        config["num_local_experts"] = e.count;
        config["intermediate_size"] = e.ffn;
        config["router_jitter_noise"] = 0.0;
        config["sliding_window"] = nullptr;
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

}  // namespace ultrascale
