// The parts of a plain Llama on one device, and the parameters that they register.
#include <algorithm>

#include "core/error.h"
#include "dropout.h"
#include "llama.h"

namespace ultrascale {

Parameter* head_weight(ParameterList& list, const LlamaConfig& config,
                       const std::function<Parameter(const char*)>& vocabulary_weight) {
    if (!config.tied) return list.add(vocabulary_weight("lm_head.weight"));
    if (Parameter* embedding = list.find("model.embed_tokens.weight")) {
        embedding->uses = 2;
        std::erase(embedding->also_summed_over, "tied");
        return embedding;
    }
    Parameter copy = vocabulary_weight("model.embed_tokens.weight");
    copy.also_summed_over.push_back("tied");
    return list.add(std::move(copy));
}

Parts default_parts(const LlamaConfig& config, const ModelOptions& options) {
    Parts parts{.heads = config.heads, .kv_heads = config.kv_heads};
    parts.gemm = [](ParameterList&, const Place&, std::vector<Parameter*> rows, LinearRole) {
        return std::make_unique<Linear>(std::move(rows));
    };
    parts.linear = [config](ParameterList& list, const Parts& parts, const Place& place,
                            LinearRole role, const Parts::LinearShape& shape) {
        std::vector<Parameter*> rows;
        for (const auto& [name, size] : shape.rows)
            rows.push_back(list.add({.name = place.part(name).weight(),
                                     .shape = {size, shape.cols},
                                     .init_std = float(config.init_std)}));
        return parts.gemm(list, place, std::move(rows), role);
    };
    parts.norm = [config](ParameterList& list, const Place& place) {
        Parameter* weight = list.add({.name = place.weight(),
                                      .shape = {config.hidden},
                                      .start = Start::ones,
                                      .decays = false});
        return std::make_unique<Norm>(weight, float(config.norm_eps));
    };
    parts.head_norms = [config](ParameterList& list, const Place& place) {
        const auto weight = [&](const char* name) {
            return list.add({.name = place.part(name).weight(),
                             .shape = {config.head_dim},
                             .start = Start::ones,
                             .decays = false});
        };
        if (!config.head_norms) return std::unique_ptr<HeadNorms>();
        Parameter *q = weight("q_norm"), *k = weight("k_norm");
        return std::make_unique<HeadNorms>(q, k, float(config.norm_eps));
    };
    parts.attention = [options](const Place&) -> std::unique_ptr<AttentionCore> {
        if (options.attention == AttentionKind::flash) return std::make_unique<FlashAttention>();
        return std::make_unique<NaiveAttention>(options.recompute == Recompute::selective);
    };
    parts.feed_forward = [config](ParameterList& list, const Parts& parts, const Place& layer) {
        if (config.has_experts(layer.layer))
            user_error("this model has experts; only 06_expert_parallel runs it");
        const Place mlp = layer.part("mlp");
        auto gate_up =
            parts.linear(list, parts, mlp, LinearRole::column,
                         {{{"gate_proj", config.ffn}, {"up_proj", config.ffn}}, config.hidden});
        auto down = parts.linear(list, parts, mlp, LinearRole::row,
                                 {{{"down_proj", config.hidden}}, config.ffn});
        return std::make_unique<SwiGLU>(std::move(gate_up), std::move(down));
    };
    const auto vocabulary_weight = [config](const char* name) {
        return Parameter{.name = name,
                         .shape = {config.vocab, config.hidden},
                         .init_std = float(config.init_std)};
    };
    parts.embedding = [vocabulary_weight](ParameterList& list) {
        return std::make_unique<Embedding>(
            list.add(vocabulary_weight("model.embed_tokens.weight")));
    };
    parts.head = [config, options, vocabulary_weight](ParameterList& list, const Stage&) {
        Parameter* const weight = head_weight(list, config, vocabulary_weight);
        weight->added_at_once = options.loss_chunk == 0;
        return std::make_unique<Head>(weight, options.loss_chunk);
    };
    parts.checkpoint = [](const Place&) { return std::make_unique<Checkpoint>(); };
    add_dropout(parts, {float(options.dropout), options.seed});
    return parts;
}

}  // namespace ultrascale
