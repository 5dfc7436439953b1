// The parts of a plain Llama on one device, and the parameters that they register.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "gpt.h"
#include "latent.h"

namespace ultrascale {

Parameter* head_weight(ParameterList& list, const LlamaConfig& config,
                       const std::function<Parameter(const char*)>& vocabulary_weight) {
    if (!config.tied) return list.add(vocabulary_weight("lm_head.weight"));
    if (Parameter* embedding = list.find("model.embed_tokens.weight")) {
        embedding->uses = 2;
        std::erase(embedding->replica_groups, "tied");
        return embedding;
    }
    Parameter copy = vocabulary_weight("model.embed_tokens.weight");
    copy.replica_groups.push_back("tied");
    return list.add(std::move(copy));
}

float init_std(const LlamaConfig& config, LinearRole role) {
    const bool smaller = config.gpt && role == LinearRole::row;
    return float(config.init_std / (smaller ? std::sqrt(2 * double(config.layers)) : 1));
}

ModuleFactories default_factories(const LlamaConfig& config, const ModelOptions& options) {
    ModuleFactories factories{.heads = config.heads, .kv_heads = config.kv_heads};
    factories.gemm = [](ParameterList&, const ModulePath&, std::vector<Parameter*> rows,
                        LinearRole) { return std::make_unique<Linear>(std::move(rows)); };
    factories.linear = [config](ParameterList& list, const ModuleFactories& factories,
                                const ModulePath& path, LinearRole role,
                                const ModuleFactories::LinearShape& shape) {
        std::vector<Parameter*> rows;
        for (const auto& [name, size] : shape.rows)
            rows.push_back(list.add({.name = path.part(name).weight(),
                                     .shape = {size, shape.cols},
                                     .init_std = init_std(config, role)}));
        if (config.gpt) add_biases(list, rows, role);
        return factories.gemm(list, path, std::move(rows), role);
    };
    factories.norm = [config](ParameterList& list,
                              const ModulePath& path) -> std::unique_ptr<Norm> {
        const auto eps = float(config.norm_eps);
        Parameter* weight = list.add(
            {.name = path.weight(), .shape = {config.hidden}, .init = Init::ones, .decays = false});
        if (!config.gpt) return std::make_unique<Norm>(weight, eps);
        Parameter* bias = list.add({.name = path.name + ".bias",
                                    .shape = {config.hidden},
                                    .init = Init::zeros,
                                    .decays = false});
        return std::make_unique<LayerNorm>(weight, bias, eps);
    };
    factories.head_norms = [config](ParameterList& list, const ModulePath& path) {
        const auto weight = [&](const char* name) {
            return list.add({.name = path.part(name).weight(),
                             .shape = {config.head_dim},
                             .init = Init::ones,
                             .decays = false});
        };
        if (!config.head_norms) return std::unique_ptr<HeadNorms>();
        Parameter *q = weight("q_norm"), *k = weight("k_norm");
        return std::make_unique<HeadNorms>(q, k, float(config.norm_eps));
    };
    factories.attention = [options](const ModulePath& path) -> std::unique_ptr<AttentionCore> {
        if (options.attention == AttentionKind::flash) return std::make_unique<FlashAttention>();
        return std::make_unique<NaiveAttention>(options.recompute.of(path.layer) ==
                                                Recompute::selective);
    };
    factories.self_attention = [config, options](
                                   ParameterList& list, const ModuleFactories& factories,
                                   const ModulePath& path) -> std::unique_ptr<SelfAttention> {
        if (!config.latent)
            return std::make_unique<GroupedQueryAttention>(list, config, factories, path);
        const bool again = options.recompute.of(path.layer) == Recompute::selective;
        return std::make_unique<LatentAttention>(list, config, factories, path, again);
    };
    factories.feed_forward = [config, options](
                                 ParameterList& list, const ModuleFactories& factories,
                                 const ModulePath& layer) -> std::unique_ptr<FeedForward> {
        if (config.has_experts(layer.layer))
            user_error("this model has experts; only 06_expert_parallel runs it");
        const ModulePath mlp = layer.part("mlp");
        ModuleFactories::LinearShape in = {{{"up_proj", config.ffn}}, config.hidden};
        if (!config.gpt) in.rows.insert(in.rows.begin(), {"gate_proj", config.ffn});
        auto up = factories.linear(list, factories, mlp, LinearRole::column, in);
        auto down = factories.linear(list, factories, mlp, LinearRole::row,
                                     {{{"down_proj", config.hidden}}, config.ffn});
        if (config.gpt)
            return std::make_unique<GELU>(std::move(up), std::move(down), options.keep_masks);
        return std::make_unique<SwiGLU>(std::move(up), std::move(down));
    };
    const auto vocabulary_weight = [config](const char* name) {
        return Parameter{.name = name,
                         .shape = {config.vocab, config.hidden},
                         .init_std = float(config.init_std)};
    };
    factories.embedding = [vocabulary_weight](ParameterList& list) {
        return std::make_unique<Embedding>(
            list.add(vocabulary_weight("model.embed_tokens.weight")));
    };
    factories.head = [config, options, vocabulary_weight](ParameterList& list, const Stage&) {
        Parameter* const weight = head_weight(list, config, vocabulary_weight);
        weight->added_at_once = options.loss_chunk == 0;
        return std::make_unique<Head>(weight, options.loss_chunk);
    };
    factories.checkpoint = [](const ModulePath&) { return std::make_unique<Checkpoint>(); };
    add_positions(factories, config);
    add_attention_dropout(factories, config, options);
    add_dropout(
        factories,
        {.p = float(options.dropout), .seed = options.seed, .keeps_masks = options.keep_masks});
    return factories;
}

}  // namespace ultrascale
