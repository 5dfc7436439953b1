#include "gpt.h"

#include "activation.h"
#include "core/error.h"
#include "core/ops_gpt.h"

namespace ultrascale {

// ---- LayerNorm ----------------------------------------------------------------------------------

Tensor LayerNorm::forward(const Tensor& x, Saved& saved, Context&) {
    const TraceName name(TraceName::part, name_);
    Tensor y = activation_like(x), statistics = activation({x.rows(), 2}, DType::fp32);
    ops::layernorm_forward(y, statistics, x, weight_->value, bias_->value, eps_);
    saved.keep("x", x);
    saved.keep("statistics", statistics);
    return y;
}

Tensor LayerNorm::backward(const Tensor& dy, const Tensor& dresidual, Saved& saved,
                           Context& context) {
    const TraceName name(TraceName::part, name_);
    const Tensor x = saved.take("x"), statistics = saved.take("statistics");
    Tensor dx = activation_like(x);
    const bool add = bool(weight_->begin_contribution());
    bias_->begin_contribution();
    ops::layernorm_backward(dx, weight_->grad, bias_->grad, dy, x, statistics, weight_->value,
                            dresidual, add);
    context.contributed(*weight_), context.contributed(*bias_);
    return dx;
}

// ---- GELU feed-forward --------------------------------------------------------------------------

Tensor GELU::forward(const Tensor& x, const Tensor& residual, Saved& saved, Context& context) {
    Tensor up = up_->forward(x, saved["up_proj"], context), a = activation_like(up);  // (B, T, F)
    ops::gelu_forward(a, up);
    saved.keep("up", std::move(up));
    Tensor y = down_->forward(a, saved["down_proj"], context, residual);  // (B, T, h)
    if (!keeps_output_) saved["down_proj"].drop("x");
    return y;
}

Tensor GELU::backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when) {
    Tensor da = down_->backward_input(dy, saved["down_proj"], context);  // (B, T, F)
    Tensor up = saved.take("up"), dup = activation_like(up);
    ops::gelu_backward(dup, da, up);  // da now holds down's input x
    up = {};
    if (!keeps_output_) saved["down_proj"].keep("x", da);
    da = {};
    if (when == WeightGradient::now) down_->backward_weight(saved["down_proj"], context);
    return up_->backward(dup, saved["up_proj"], context, when);
}

void GELU::backward_weight(Saved& saved, Context& context) {
    down_->backward_weight(saved["down_proj"], context);
    up_->backward_weight(saved["up_proj"], context);
}

// ---- positions ----------------------------------------------------------------------------------

// Calls part(rows of the stream, positions of their tokens).
template <class Part>
static void for_each_range(const TokensOfRows& tokens, int64_t rows, const Context& context,
                           Part part) {
    const Tensor positions = context.batch.positions.view({context.batch.positions.numel()});
    for (const TokenRange& range : ranges_of(tokens, rows))
        part(Range{range.first_row, range.first_row + range.count},
             positions.slice(range.first_token, range.first_token + range.count));
}

Tensor LearnedPositions::forward(Saved& saved, Context& context) {
    Tensor x = inner_->forward(saved, context), added = activation_like(x);
    const Tensor rows = added.view({x.rows(), x.cols()});
    for_each_range(tokens_, x.rows(), context, [&](Range range, const Tensor& positions) {
        ops::embedding_forward(rows.slice(range.begin, range.end), positions, weight_->value);
    });
    ops::add(x, added);
    return x;
}

void LearnedPositions::backward_weight(Saved& saved, Context& context) {
    const Tensor& dy = saved.get("dy");
    const Tensor rows = dy.view({dy.rows(), dy.cols()}),
                 gradient = weight_->begin_contribution_in_place();
    for_each_range(tokens_, dy.rows(), context, [&](Range range, const Tensor& positions) {
        ops::embedding_backward(gradient, positions, rows.slice(range.begin, range.end));
    });
    context.contributed(*weight_);
    inner_->backward_weight(saved, context);
}

// ---- attention with dropout ---------------------------------------------------------------------

ops::ProbabilityDropout DropoutAttention::numbers(int64_t pairs, const Context& context) const {
    const auto head = uint64_t(pairs), sample = uint64_t(settings_.all_heads) * head;
    return {.p = settings_.dropout.p,
            .random = Random(settings_.dropout.seed, "dropout " + path_),
            .first = uint64_t(context.batch.first_sample) * sample +
                     uint64_t(settings_.first_head) * head,
            .per_sequence = sample};
}

Tensor DropoutAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                                 Context& context) {
    Tensor o = activation_like(q);                                     // (B, T, H, D)
    const Shape pairs = {q.size(0), q.size(2), q.size(1), k.size(1)};  // (B, H, Tq, Tk)
    ops::ProbabilityDropout dropout = numbers(q.size(1) * k.size(1), context);
    const bool keeps_masks = settings_.dropout.keeps_masks && saved.enabled();
    if (keeps_masks)
        dropout.mask = activation(pairs, DType::e4m3),
        dropout.dropped = activation(pairs, q.dtype());
    Tensor probabilities = activation(pairs, q.dtype());
    ops::attention_naive_forward(o, probabilities, q, k, v, context.batch.mask(),
                                 context.drops() ? &dropout : nullptr);
    saved.keep("q", q), saved.keep("k", k), saved.keep("v", v);
    if (settings_.recompute) return o;
    saved.keep("probabilities", std::move(probabilities));
    if (keeps_masks) saved.keep("mask", dropout.mask), saved.keep("dropped", dropout.dropped);
    return o;
}

AttentionCore::Gradients DropoutAttention::backward(const Tensor& dout, Saved& saved,
                                                    Context& context) {
    Tensor q = saved.take("q"), k = saved.take("k"), v = saved.take("v");
    ops::ProbabilityDropout dropout = numbers(q.size(1) * k.size(1), context);
    Tensor probabilities;  // (B, H, Tq, Tk)
    if (settings_.recompute) {
        const TraceName again(TraceName::pass, "recomputed forward");
        probabilities = activation({q.size(0), q.size(2), q.size(1), k.size(1)}, q.dtype());
        ops::attention_naive_forward(activation_like(q), probabilities, q, k, v,
                                     context.batch.mask(), &dropout);
    } else {
        probabilities = saved.take("probabilities");
        if (saved.has("mask"))
            dropout.mask = saved.take("mask"), dropout.dropped = saved.take("dropped");
    }
    Gradients grads{activation_like(q), activation_like(k), activation_like(v)};
    ops::attention_naive_backward(grads.dq, grads.dk, grads.dv, dout, q, k, v, probabilities,
                                  &dropout);
    return grads;
}

// ---- factories ----------------------------------------------------------------------------------

void add_biases(ParameterList& list, const std::vector<Parameter*>& weights, LinearRole role) {
    for (Parameter* weight : weights) {
        Parameter bias{.name = weight->name.substr(0, weight->name.rfind('.')) + ".bias",
                       .shape = {weight->shape[0]},
                       .slice = {weight->slice[0]},
                       .init = Init::zeros,
                       .decays = false};
        if (role == LinearRole::column)
            bias.split_over = weight->split_over, bias.replica_groups = weight->replica_groups;
        weight->bias = list.add(std::move(bias));
    }
}

void add_positions(ModuleFactories& factories, const LlamaConfig& config, TokensOfRows tokens,
                   std::vector<std::string> summed_over) {
    if (!config.gpt) return;
    factories.embedding = [=, inner = factories.embedding](ParameterList& list) {
        std::unique_ptr<Embedding> embedding = inner(list);
        Parameter* positions = list.add({.name = "model.embed_positions.weight",
                                         .shape = {config.max_positions, config.hidden},
                                         .init_std = float(config.init_std),
                                         .replica_groups = summed_over});
        return std::make_unique<LearnedPositions>(std::move(embedding), positions, tokens);
    };
}

void add_attention_dropout(ModuleFactories& factories, const LlamaConfig& config,
                           const ModelOptions& options, int64_t first_head) {
    if (!config.gpt || options.dropout == 0) return;
    check(options.attention == AttentionKind::naive, "only naive attention can drop");
    DropoutAttention::Settings settings{
        {.p = float(options.dropout), .seed = options.seed, .keeps_masks = options.keep_masks},
        false,
        first_head,
        config.heads};
    factories.attention = [=, recompute = options.recompute](const ModulePath& path) mutable {
        settings.recompute = recompute.of(path.layer) == Recompute::selective;
        return std::make_unique<DropoutAttention>(settings, path);
    };
}

}  // namespace ultrascale
