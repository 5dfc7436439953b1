#include "llama.h"

#include "error.h"
#include "trace.h"

namespace ultrascale {

HeadWeight head_weight(ParameterList& list, const LlamaConfig& config, const Stage& stage,
                       const std::function<Parameter(const char*)>& vocabulary_weight) {
    if (Parameter* embedding = config.tied ? list.find("model.embed_tokens.weight") : nullptr) return {embedding, true};
    Parameter own = vocabulary_weight(config.tied ? "model.embed_tokens.weight" : "lm_head.weight");
    own.owner = !config.tied || stage.embedding;
    return {list.add(std::move(own)), false};
}

Parts default_parts(const LlamaConfig& config, const ModelOptions& options) {
    Parts parts{.heads = config.heads, .kv_heads = config.kv_heads};
    parts.gemm = [](std::vector<Parameter*> rows, LinearRole) { return std::make_unique<Linear>(std::move(rows)); };
    parts.linear = [config](ParameterList& list, const Parts& parts, LinearRole role, const Parts::LinearShape& shape) {
        std::vector<Parameter*> rows;
        for (const auto& [name, size] : shape.rows)
            rows.push_back(list.add({.name = name, .shape = {size, shape.cols}, .init_std = float(config.init_std)}));
        return parts.gemm(std::move(rows), role);
    };
    parts.norm = [config](ParameterList& list, const std::string& name) {
        return std::make_unique<Norm>(list.add({.name = name, .shape = {config.hidden}, .is_norm = true}), float(config.norm_eps));
    };
    parts.attention = [options]() -> std::unique_ptr<AttentionCore> {
        if (options.attention == AttentionKind::flash) return std::make_unique<FlashAttention>();
        return std::make_unique<NaiveAttention>(options.recompute == Recompute::selective);
    };
    parts.feed_forward = [config](ParameterList& list, const Parts& parts, const std::string& layer) {
        auto gate_up =
            parts.linear(list, parts, LinearRole::column,
                         {{{layer + ".mlp.gate_proj.weight", config.ffn}, {layer + ".mlp.up_proj.weight", config.ffn}}, config.hidden});
        auto down = parts.linear(list, parts, LinearRole::row, {{{layer + ".mlp.down_proj.weight", config.hidden}}, config.ffn});
        return std::make_unique<SwiGLU>(std::move(gate_up), std::move(down));
    };
    const auto vocabulary_weight = [config](const char* name) {
        return Parameter{.name = name, .shape = {config.vocab, config.hidden}, .init_std = float(config.init_std)};
    };
    parts.embedding = [vocabulary_weight](ParameterList& list) {
        return std::make_unique<Embedding>(list.add(vocabulary_weight("model.embed_tokens.weight")));
    };
    parts.head = [config, options, vocabulary_weight](ParameterList& list, const Stage& stage) {
        const auto [weight, shared] = head_weight(list, config, stage, vocabulary_weight);
        return std::make_unique<Head>(weight, options.loss_chunk, !shared);
    };
    parts.checkpoint = [] { return std::make_unique<Checkpoint>(); };
    return parts;
}

// ---- layer -------------------------------------------------------------------------------------------------------------

Layer::Layer(ParameterList& list, const LlamaConfig& config, const Parts& parts, int64_t index, Recompute recompute)
    : heads_(parts.heads), kv_heads_(parts.kv_heads), head_dim_(config.head_dim), recompute_(recompute) {
    const std::string name = fmt::format("model.layers.{}", index), attention = name + ".self_attn.";
    input_norm_ = parts.norm(list, name + ".input_layernorm.weight");
    qkv_proj_ = parts.linear(list, parts, LinearRole::column,
                             {{{attention + "q_proj.weight", config.q_size()},
                               {attention + "k_proj.weight", config.kv_size()},
                               {attention + "v_proj.weight", config.kv_size()}},
                              config.hidden});
    attention_ = parts.attention();
    o_proj_ = parts.linear(list, parts, LinearRole::row, {{{attention + "o_proj.weight", config.hidden}}, config.q_size()});
    post_attention_norm_ = parts.norm(list, name + ".post_attention_layernorm.weight");
    feed_forward_ = parts.feed_forward(list, parts, name);
    checkpoint_ = parts.checkpoint();
    frequencies_ = Tensor::from_host<float>(rope_frequencies(config), {head_dim_ / 2}, Memory::workspace);
}

Tensor Layer::attention_forward(const Tensor& x, Saved& saved, Context& context) {
    Tensor normed = input_norm_->forward(x, saved["input_layernorm"], context);
    Tensor qkv = qkv_proj_->forward(normed, saved["qkv_proj"], context);  // (B, T, (H + 2K) D)
    normed = {};
    const int64_t B = qkv.size(0), T = qkv.size(1), H = heads_, K = kv_heads_;
    check(B == context.batch.sequences() && T == context.batch.length(), "attention: a layer's input is (B, T, h) as the batch");
    Tensor q = Tensor::empty({B, T, H, head_dim_}, qkv.dtype(), Memory::activation);
    Tensor k = Tensor::empty({B, T, K, head_dim_}, qkv.dtype(), Memory::activation);
    Tensor v = Tensor::empty({B, T, K, head_dim_}, qkv.dtype(), Memory::activation);
    ops::rope_forward(q, k, v, qkv, context.batch.positions, frequencies_);
    qkv = {};
    Tensor o = attention_->forward(q, k, v, saved["attention"], context);
    return o_proj_->forward(o.view({B, T, H * head_dim_}), saved["o_proj"], context, x);
}

Tensor Layer::attention_backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when) {
    Tensor d_o = o_proj_->backward(dy, saved["o_proj"], context, when);  // (B, T, H D)
    const int64_t B = d_o.size(0), T = d_o.size(1), H = heads_, K = kv_heads_;
    auto [dq, dk, dv] = attention_->backward(d_o.view({B, T, H, head_dim_}), saved["attention"], context);
    d_o = {};
    Tensor dqkv = Tensor::empty({B, T, (H + 2 * K) * head_dim_}, dq.dtype(), Memory::activation);
    ops::rope_backward(dqkv, dq, dk, dv, context.batch.positions, frequencies_);
    dq = {}, dk = {}, dv = {};
    Tensor dnormed = qkv_proj_->backward(dqkv, saved["qkv_proj"], context, when);
    dqkv = {};
    return input_norm_->backward(dnormed, dy, saved["input_layernorm"], context);
}

Tensor Layer::feed_forward_forward(const Tensor& x, Saved& saved, Context& context) {
    Tensor normed = post_attention_norm_->forward(x, saved["post_attention_layernorm"], context);
    return feed_forward_->forward(normed, x, saved["mlp"], context);
}

Tensor Layer::feed_forward_backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when) {
    Tensor dnormed = feed_forward_->backward(dy, saved["mlp"], context, when);
    return post_attention_norm_->backward(dnormed, dy, saved["post_attention_layernorm"], context);
}

Tensor Layer::forward(const Tensor& x, Saved& saved, Context& context) {
    if (recompute_ == Recompute::full && context.training && !context.recomputing) {
        // Keep the input only; backward runs this forward once more.
        checkpoint_->keep(x, saved, context);
        Saved nothing;
        nothing.disable();
        return feed_forward_forward(attention_forward(x, nothing, context), nothing, context);
    }
    return feed_forward_forward(attention_forward(x, saved, context), saved, context);
}

Tensor Layer::backward(Tensor dy, Saved& saved, Context& context, WeightGradient when) {
    if (recompute_ == Recompute::full) {
        const TraceName again(TraceName::pass, "recomputed forward");
        const SectionSpan span;
        context.recomputing = true;
        forward(checkpoint_->take(saved, context), saved, context);
        context.recomputing = false;
    }
    dy = feed_forward_backward(dy, saved, context, when);
    return attention_backward(dy, saved, context, when);
}

void Layer::backward_weight(Saved& saved, Context& context) {
    feed_forward_->backward_weight(saved["mlp"], context);
    o_proj_->backward_weight(saved["o_proj"], context);
    qkv_proj_->backward_weight(saved["qkv_proj"], context);
}

// ---- model -------------------------------------------------------------------------------------------------------------

Llama::Llama(const LlamaConfig& config, const ModelOptions& options)
    : Llama(config, options, default_parts(config, options), Stage::whole(config)) {}

Llama::Llama(const LlamaConfig& config, const ModelOptions& options, const Parts& parts, Stage stage) : config_(config), options_(options) {
    // A unit owns the parameters that were registered while it was built; a tied head also uses the embedding's.
    auto close_unit = [this, registered = size_t(0)](std::string name) mutable {
        Unit unit{std::move(name), {}, int(units_.size())};
        for (auto it = parameters_.begin() + std::ptrdiff_t(registered); it != parameters_.end(); ++it)
            unit.parameters.push_back(it->get());
        registered = parameters_.size();
        units_.push_back(std::move(unit));
    };
    if (stage.embedding) {
        embedding_ = parts.embedding(parameters_);
        close_unit("embedding");
    }
    for (int64_t i = stage.first_layer; i < stage.last_layer; ++i) {
        layers_.push_back(std::make_unique<Layer>(parameters_, config, parts, i, options.recompute));
        close_unit(fmt::format("layers.{}", i));
    }
    if (stage.head) {
        norm_ = parts.norm(parameters_, "model.norm.weight");
        head_ = parts.head(parameters_, stage);
        close_unit("head");
        units_.back().gradients_in_forward = options.loss_chunk > 0;
        if (config.tied && stage.embedding) units_.back().parameters.push_back(units_.front().parameters.front());
    }
}

template <class Work>
void Llama::run(const Unit& unit, Pass pass, const Context& context, Work&& work) const {
    const TraceName name(TraceName::part, unit.name),
        name_of_pass(TraceName::pass, pass_names[int(pass)]);
    const SectionSpan span;
    if (context.hooks) context.hooks->before(unit, pass, context);
    work();
    if (context.hooks) context.hooks->after(unit, pass, context);
}

// Embedding and layers, with hooks.
Tensor Llama::forward_layers(Tensor x, Saved& saved, Context& context) {
    size_t u = 0;
    if (embedding_)
        run(units_[u++], Pass::forward, context,
            [&] { x = embedding_->forward(saved["embedding"], context); });
    for (auto& layer : layers_) {
        const Unit& unit = units_[u++];
        run(unit, Pass::forward, context,
            [&] { x = layer->forward(x, saved[unit.name], context); });
    }
    return x;
}

Tensor Llama::forward(Tensor x, Saved& kept, Context& context) {
    Saved nothing;
    nothing.disable();
    Saved& saved = context.training ? kept : nothing;
    x = forward_layers(std::move(x), saved, context);
    if (!head_) return x;
    run(units_.back(), Pass::forward, context, [&] {
        Tensor normed = norm_->forward(x, saved["norm"], context);
        head_->forward(normed, saved["head"], context);
    });
    return {};
}

Tensor Llama::backward(Tensor dy, Saved& saved, Context& context, WeightGradient when) {
    const Pass pass = when == WeightGradient::now ? Pass::backward : Pass::backward_input;
    const bool now = when == WeightGradient::now;
    size_t u = units_.size();
    if (head_)
        run(units_[--u], pass, context, [&] {
            dy = head_->backward(saved["head"], context, when);
            dy = norm_->backward(dy, {}, saved["norm"], context);
        });
    for (size_t i = layers_.size(); i-- > 0;) {
        const Unit& unit = units_[--u];
        run(unit, pass, context,
            [&] { dy = layers_[i]->backward(std::move(dy), saved[unit.name], context, when); });
    }
    if (!embedding_) return dy;
    run(units_[0], pass, context, [&] {
        embedding_->backward_input(dy, saved["embedding"], context);
        dy = {};
        if (now) embedding_->backward_weight(saved["embedding"], context);
    });
    return {};
}

void Llama::backward_weight(Saved& saved, Context& context) {
    const auto unit = [&](size_t u, auto&& work) {
        run(units_[u], Pass::backward_weight, context, [&] { work(saved[units_[u].name]); });
    };
    size_t u = units_.size();
    if (head_) unit(--u, [&](Saved& s) { head_->backward_weight(s, context); });
    for (size_t i = layers_.size(); i-- > 0;) unit(--u, [&](Saved& s) { layers_[i]->backward_weight(s, context); });
    if (embedding_) unit(0, [&](Saved& s) { embedding_->backward_weight(s, context); });
}

Tensor Llama::logits(const Batch& batch, Hooks* hooks) {
    check(embedding_ && head_, "logits: needs a whole model");
    Context context{.batch = batch, .training = false, .hooks = hooks};
    Saved nothing;
    nothing.disable();
    Tensor x = forward_layers({}, nothing, context), logits;
    run(units_.back(), Pass::forward, context,
        [&] { logits = head_->logits(norm_->forward(x, nothing["norm"], context)); });
    return logits;
}

}  // namespace ultrascale
