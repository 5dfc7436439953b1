#include "llama.h"

#include <ranges>

#include "activation.h"
#include "core/error.h"

namespace ultrascale {

// ---- layer --------------------------------------------------------------------------------------

Layer::Layer(ParameterList& list, const ModuleFactories& factories, int64_t index,
             Recompute::Kind recompute)
    : recompute_(recompute) {
    const ModulePath layer{index, fmt::format("model.layers.{}", index)};
    input_norm_ = factories.norm(list, layer.part("input_layernorm"));
    self_attention_ = factories.self_attention(list, factories, layer.part("self_attn"));
    post_attention_norm_ = factories.norm(list, layer.part("post_attention_layernorm"));
    feed_forward_ = factories.feed_forward(list, factories, layer);
    checkpoint_ = factories.checkpoint(layer);
}

Tensor Layer::attention(const Tensor& x, Saved& saved, Context& context) {
    Tensor normed = input_norm_->forward(x, saved["input_layernorm"], context);  // (B, T, h)
    return self_attention_->forward(std::move(normed), x, saved, context);
}

Tensor Layer::attention_backward(const Tensor& dy, Saved& saved, Context& context,
                                 WeightGradient when) {
    Tensor dnormed = self_attention_->backward(dy, saved, context, when);  // (B, T, h)
    return input_norm_->backward(dnormed, dy, saved["input_layernorm"], context);
}

Tensor Layer::feed_forward(const Tensor& x, Saved& saved, Context& context) {
    Tensor normed =
        post_attention_norm_->forward(x, saved["post_attention_layernorm"], context);  // (B, T, h)
    return feed_forward_->forward(normed, x, saved["mlp"], context);
}

Tensor Layer::feed_forward_backward(const Tensor& dy, Saved& saved, Context& context,
                                    WeightGradient when) {
    Tensor dnormed = feed_forward_->backward(dy, saved["mlp"], context, when);  // (B, T, h)
    return post_attention_norm_->backward(dnormed, dy, saved["post_attention_layernorm"], context);
}

Tensor Layer::forward(const Tensor& x, Saved& saved, Context& context) {
    if (recompute_ != Recompute::full || !context.training || context.recomputing)
        return feed_forward(attention(x, saved, context), saved, context);
    checkpoint_->keep(x, saved, context);  // and nothing else: backward recomputes the rest
    Saved nothing;
    nothing.disable();
    return feed_forward(attention(x, nothing, context), nothing, context);
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
    self_attention_->backward_weight(saved, context);
}

// ---- model --------------------------------------------------------------------------------------

Llama::Llama(const LlamaConfig& config, const ModelOptions& options)
    : Llama(config, options, default_factories(config, options), Stage::whole(config)) {}

Llama::Llama(const LlamaConfig& config, const ModelOptions& options,
             const ModuleFactories& factories, Stage stage, ParameterList* shared)
    : config_(config),
      options_(options),
      own_parameters_(shared ? nullptr : std::make_unique<ParameterList>()),
      parameters_(shared ? *shared : *own_parameters_) {
    // A unit owns the parameters that were registered while it was built. A tied head also uses the
    // embedding's, if the list has it.
    auto close_unit = [this, registered = parameters_.size()](std::string name) mutable {
        Unit unit{std::move(name), {}, int(units_.size())};
        for (auto it = parameters_.begin() + std::ptrdiff_t(registered); it != parameters_.end();
             ++it)
            unit.parameters.push_back(it->get());
        registered = parameters_.size();
        units_.push_back(std::move(unit));
    };
    if (stage.embedding) {
        embedding_ = factories.embedding(parameters_);
        if (config.tied && !stage.head)
            parameters_.find("model.embed_tokens.weight")->replica_groups.push_back("tied");
        close_unit("embedding");
        units_.back().reads_in_backward = false;
    }
    for (int64_t i = stage.first_layer; i < stage.last_layer; ++i) {
        layers_.push_back(
            std::make_unique<Layer>(parameters_, factories, i, options.recompute.of(i)));
        close_unit(fmt::format("layers.{}", i));
    }
    if (stage.head) {
        Parameter* tied_to = config.tied ? parameters_.find("model.embed_tokens.weight") : nullptr;
        norm_ = factories.norm(parameters_, {ModulePath::no_layer, "model.norm"});
        head_ = factories.head(parameters_, stage);
        close_unit("head");
        units_.back().gradients_in_forward = options.loss_chunk > 0;
        if (tied_to) units_.back().parameters.push_back(tied_to);
    }
}

Layer* Llama::layer(const Unit& unit) const {
    const int i = unit.index - (embedding_ ? 1 : 0);
    return i >= 0 && i < int(layers_.size()) ? layers_[size_t(i)].get() : nullptr;
}

Tensor Llama::forward_unit(const Unit& unit, Tensor x, Saved& kept, Context& context) {
    Saved nothing;
    nothing.disable();
    Saved& saved = context.training ? kept : nothing;
    run_unit(unit, Pass::forward, context, [&] {
        if (is_head(unit)) {
            Tensor normed = norm_->forward(x, saved["norm"], context);  // (B, T, h)
            head_->forward(normed, saved["head"], context);
        } else if (Layer* layer = this->layer(unit)) {
            x = layer->forward(x, saved[unit.name], context);
        } else {
            x = embedding_->forward(saved[unit.name], context);
        }
    });
    return is_head(unit) ? Tensor() : x;
}

Tensor Llama::backward_unit(const Unit& unit, Tensor dy, Saved& saved, Context& context,
                            WeightGradient when) {
    const bool now = when == WeightGradient::now;
    run_unit(unit, now ? Pass::backward : Pass::backward_input, context, [&] {
        if (is_head(unit)) {
            dy = head_->backward(saved["head"], context, when);
            dy = norm_->backward(dy, {}, saved["norm"], context);
        } else if (Layer* layer = this->layer(unit)) {
            dy = layer->backward(std::move(dy), saved[unit.name], context, when);
        } else {
            embedding_->backward_input(dy, saved[unit.name], context);
            dy = {};
            if (now) embedding_->backward_weight(saved[unit.name], context);
        }
    });
    return dy;
}

void Llama::backward_weight_unit(const Unit& unit, Saved& saved, Context& context) {
    run_unit(unit, Pass::backward_weight, context, [&] {
        if (is_head(unit))
            head_->backward_weight(saved["head"], context);
        else if (Layer* layer = this->layer(unit))
            layer->backward_weight(saved[unit.name], context);
        else
            embedding_->backward_weight(saved[unit.name], context);
    });
}

void Llama::forward(Context& batch, Saved& saved) {
    phase("forward", [&] { forward({}, saved, batch); });
    if (batch.hooks) batch.hooks->forward_done(saved, batch);
}

void Llama::backward(Context& batch, Saved& saved) {
    phase("backward", [&] { backward({}, saved, batch); });
}

Tensor Llama::forward(Tensor x, Saved& saved, Context& context) {
    for (const Unit& unit : units_) x = forward_unit(unit, std::move(x), saved, context);
    return x;
}

Tensor Llama::backward(Tensor dy, Saved& saved, Context& context, WeightGradient when) {
    for (const Unit& unit : units_ | std::views::reverse)
        dy = backward_unit(unit, std::move(dy), saved, context, when);
    return dy;
}

void Llama::backward_weight(Saved& saved, Context& context) {
    for (const Unit& unit : units_ | std::views::reverse)
        backward_weight_unit(unit, saved, context);
}

Tensor Llama::logits(const Batch& batch, Hooks* hooks, Tensor x) {
    check(head_ && bool(embedding_) != bool(x), "logits: needs the head, and the stage's input");
    Context context{.batch = batch, .training = false, .hooks = hooks};
    Saved nothing;
    nothing.disable();
    Tensor logits;  // (B, T, V)
    for (const Unit& unit : units_)
        if (!is_head(unit)) x = forward_unit(unit, std::move(x), nothing, context);
    run_unit(units_.back(), Pass::forward, context,
             [&] { logits = head_->logits(norm_->forward(x, nothing["norm"], context)); });
    return logits;
}

}  // namespace ultrascale
