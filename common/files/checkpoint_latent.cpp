#include "checkpoint_latent.h"

namespace ultrascale {

void read_latent(const Fields& fields, LlamaConfig& config) {
    LatentConfig& l = config.latent;
    l.q_rank = fields.integer("q_lora_rank", 0);  // null: queries are made of x
    l.kv_rank = fields.integer("kv_lora_rank");
    l.nope_dim = fields.integer("qk_nope_head_dim");
    l.rope_dim = fields.integer("qk_rope_head_dim");
    l.v_dim = fields.integer("v_head_dim");
    config.head_dim = l.nope_dim + l.rope_dim;
    if (l.kv_rank < 1)
        user_error("{}: kv_lora_rank = {} is not positive", fields.where(), l.kv_rank);
    fields.only("rope_interleave", true);
    // The first two follow from the others; the layer of multi-token prediction is not trained.
    fields.understands({"head_dim", "qk_head_dim", "num_nextn_predict_layers"});
}

void write_latent(nlohmann::ordered_json& config, const LlamaConfig& c) {
    const LatentConfig& l = c.latent;
    const std::string type = model_type(c);
    config["model_type"] = type;
    config["architectures"] = {type == "deepseek_v2" ? "DeepseekV2ForCausalLM"
                                                     : "DeepseekV3ForCausalLM"};
    config["head_dim"] = l.rope_dim;
    config["q_lora_rank"] = nullptr;
    if (l.q_rank > 0) config["q_lora_rank"] = l.q_rank;
    config["kv_lora_rank"] = l.kv_rank;
    config["qk_nope_head_dim"] = l.nope_dim;
    config["qk_rope_head_dim"] = l.rope_dim;
    config["v_head_dim"] = l.v_dim;
    config["rope_interleave"] = true;
    config["num_nextn_predict_layers"] = 0;
    if (c.experts.count == 0) config["first_k_dense_replace"] = c.layers;
}

}  // namespace ultrascale
