#include "parts.h"

#include "activation.h"
#include "core/error.h"
#include "core/ops_gpt.h"
#include "core/trace.h"

namespace ultrascale {

using ops::Transpose;

Tensor Saved::take(const std::string& name) {
    auto it = tensors_.find(name);
    check(it != tensors_.end(), "backward asks for a tensor that forward did not keep");
    Tensor t = std::move(it->second);
    tensors_.erase(it);
    return t;
}

std::any Saved::take_any() {
    check(object_.has_value(), "backward asks for an object that forward did not keep");
    return std::exchange(object_, {});
}

Saved& Saved::operator[](const std::string& child) {
    auto [it, is_new] = children_.try_emplace(child);
    if (is_new) it->second.enabled_ = enabled_;
    return it->second;
}

void Saved::disable() {
    enabled_ = false;
    for (auto& [name, child] : children_) child.disable();
}

void Saved::for_each(const std::function<void(const std::string&, const Tensor&)>& visit,
                     const std::string& prefix) const {
    for (const auto& [name, tensor] : tensors_)
        if (tensor) visit(prefix + name, tensor);
    for (const auto& [name, child] : children_) child.for_each(visit, prefix + name + "/");
}

void Context::contributed(Parameter& parameter) const {
    check(parameter.missing > 0, "backward needs begin_gradients() before it");
    if (contributions) contributions->push_back(&parameter);
    parameter.complete = --parameter.missing == 0;
    if (!parameter.complete) return;
    parameter.missing = parameter.contributions;                       // for the next sum
    if (!parameter.has_grad) parameter.begin_contribution_in_place();  // no contribution: zero
    if (hooks) hooks->gradient_complete(parameter, *this);
}

namespace {

Shape with_last(Shape shape, int64_t last) {
    shape.back() = last;
    return shape;
}

}  // namespace

// ---- linear: y = x W^T (+ b); dx = dy W; dW += dy^T x; db += the sum of dy's rows ---------------

Linear::Linear(std::vector<Parameter*> rows) : parameters_(std::move(rows)) {
    for (const Parameter* parameter : parameters_) {
        const std::string part = parameter->part();
        name_ += name_.empty() ? part : "+" + part.substr(part.rfind('.') + 1);
        if (parameter->bias) biases_.push_back(parameter->bias);
    }
}

Tensor Linear::forward(const Tensor& x, Saved& saved, Context&, const Tensor& residual) {
    const TraceName name(TraceName::part, name_);
    Tensor y = activation(with_last(x.shape(), outputs()), x.dtype());  // (..., out)
    multiply(y, x, residual);
    saved.keep("x", x);
    return y;
}

Tensor Linear::backward_input(const Tensor& dy, Saved& saved, Context&) {
    const TraceName name(TraceName::part, name_);
    Tensor dx = activation(with_last(dy.shape(), inputs()), dy.dtype());  // (..., in)
    multiply_backward(dx, dy);
    saved.keep("dy", dy);
    return dx;
}

void Linear::backward_weight(Saved& saved, Context& context) {
    const TraceName name(TraceName::part, name_);
    Tensor x = saved.take("x"), dy = saved.take("dy");  // (..., in), (..., out)
    add_weight_gradient(dy, x, context);
}

Tensor Linear::backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when) {
    Tensor dx = backward_input(dy, saved, context);  // (..., in)
    if (when == WeightGradient::now) backward_weight(saved, context);
    return dx;
}

void Linear::multiply(Tensor y, const Tensor& x, const Tensor& residual) {
    const Tensor weight = stacked_values(parameters_);  // (out, in)
    const bool biased = adds_bias_ && !biases_.empty();
    ops::matmul(y, x, Transpose::no, weight, Transpose::yes, residual,
                biased ? stacked_values(biases_) : Tensor());
}

void Linear::multiply_backward(Tensor dx, const Tensor& dy) {
    const TraceName pass(TraceName::pass, "dX");
    const Tensor weight = stacked_values(parameters_);  // (out, in)
    ops::matmul(dx, dy, Transpose::no, weight, Transpose::no);
}

void Linear::add_weight_gradient(const Tensor& dy, const Tensor& x, Context& context) {
    const TraceName pass(TraceName::pass, "dW");
    ops::matmul(stacked_grads(parameters_), dy, Transpose::yes, x, Transpose::no,
                begin_contributions(parameters_));
    for (Parameter* parameter : parameters_) context.contributed(*parameter);
    if (biases_.empty()) return;
    ops::column_sums(stacked_grads(biases_), dy, begin_contributions(biases_));
    for (Parameter* bias : biases_) context.contributed(*bias);
}

int64_t Linear::outputs() const {
    int64_t rows = 0;
    for (const Parameter* parameter : parameters_) rows += parameter->slice[0].size();
    return rows;
}

// ---- RMSNorm ------------------------------------------------------------------------------------

Tensor Norm::forward(const Tensor& x, Saved& saved, Context&) {
    const TraceName name(TraceName::part, name_);
    Tensor y = activation_like(x), rstd = activation({x.rows()}, DType::fp32);  // (..., h), (N)
    ops::rmsnorm_forward(y, rstd, x, weight_->value, eps_);
    saved.keep("x", x);
    saved.keep("rstd", rstd);
    return y;
}

Tensor Norm::backward(const Tensor& dy, const Tensor& dresidual, Saved& saved, Context& context) {
    const TraceName name(TraceName::part, name_);
    Tensor x = saved.take("x"), rstd = saved.take("rstd"), dx = activation_like(x);  // as forward's
    const bool add = bool(weight_->begin_contribution());
    ops::rmsnorm_backward(dx, weight_->grad, dy, x, rstd, weight_->value, dresidual, add);
    context.contributed(*weight_);
    return dx;
}

Tensor HeadNorms::forward(const Tensor& qkv, int64_t heads, Saved& saved, Context&) {
    const TraceName name(TraceName::part, "self_attn.q_norm+k_norm");
    Tensor y = activation_like(qkv), rstd = activation({qkv.rows(), heads}, DType::fp32);
    ops::norm_heads_forward(y, rstd, qkv, q_->value, k_->value, eps_);
    saved.keep("qkv", qkv);
    saved.keep("rstd", rstd);
    return y;
}

void HeadNorms::backward(Tensor dqkv, Saved& saved, Context& context) {
    const TraceName name(TraceName::part, "self_attn.q_norm+k_norm");
    const Tensor qkv = saved.take("qkv"), rstd = saved.take("rstd");
    const bool add = bool(q_->begin_contribution());
    k_->begin_contribution();
    ops::norm_heads_backward(dqkv, q_->grad, k_->grad, qkv, rstd, q_->value, k_->value, add);
    context.contributed(*q_), context.contributed(*k_);
}

// ---- SwiGLU feed-forward ------------------------------------------------------------------------

Tensor SwiGLU::forward(const Tensor& x, const Tensor& residual, Saved& saved, Context& context) {
    Tensor gate_up = gate_up_->forward(x, saved["gate_up_proj"], context);  // (B, T, 2 F)
    const Shape shape = with_last(gate_up.shape(), gate_up.cols() / 2);
    Tensor a = activation(shape, gate_up.dtype());  // (B, T, F)
    ops::swiglu_forward(a, gate_up);
    saved.keep("gate_up", std::move(gate_up));
    Tensor y = down_->forward(a, saved["down_proj"], context, residual);  // (B, T, h)
    saved["down_proj"].drop("x");
    return y;
}

Tensor SwiGLU::backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when) {
    Tensor da = down_->backward_input(dy, saved["down_proj"], context);           // (B, T, F)
    Tensor gate_up = saved.take("gate_up"), dgate_up = activation_like(gate_up);  // (B, T, 2 F)
    gradient(dgate_up, da, gate_up);  // da now holds down's input x
    saved["down_proj"].keep("x", std::move(da));
    gate_up = {};
    if (when == WeightGradient::now) down_->backward_weight(saved["down_proj"], context);
    return gate_up_->backward(dgate_up, saved["gate_up_proj"], context, when);
}

void SwiGLU::gradient(Tensor dgate_up, Tensor da, const Tensor& gate_up) {
    ops::swiglu_backward(dgate_up, da, gate_up);
}

void SwiGLU::backward_weight(Saved& saved, Context& context) {
    down_->backward_weight(saved["down_proj"], context);
    gate_up_->backward_weight(saved["gate_up_proj"], context);
}

// ---- embedding ----------------------------------------------------------------------------------

Tensor Embedding::forward(Saved&, Context& context) {
    const int64_t B = context.batch.sequences(), T = context.batch.length();
    const Tensor& weight = weight_->value;                         // (V, h)
    Tensor x = activation({B, T, weight.cols()}, weight.dtype());  // (B, T, h)
    ops::embedding_forward(x, context.batch.tokens, weight);
    return x;
}

void Embedding::backward_input(const Tensor& dy, Saved& saved, Context&) { saved.keep("dy", dy); }

void Embedding::backward_weight(Saved& saved, Context& context) {
    ops::embedding_backward(weight_->begin_contribution_in_place(), context.batch.tokens,
                            saved.take("dy"));
    context.contributed(*weight_);
}

// ---- full recomputation -------------------------------------------------------------------------

void Checkpoint::keep(const Tensor& x, Saved& saved, Context&) { saved.keep("checkpoint", x); }
Tensor Checkpoint::take(Saved& saved, Context&) { return saved.take("checkpoint"); }

// ---- output head with loss ----------------------------------------------------------------------

Tensor Head::logits(const Tensor& x) const { return local_logits(x); }

Tensor Head::local_logits(const Tensor& x) const {
    const Tensor& weight = weight_->value;                                       // (V, h)
    Tensor logits = activation(with_last(x.shape(), weight.rows()), x.dtype());  // (..., V)
    ops::matmul(logits, x, Transpose::no, weight, Transpose::yes);
    return logits;
}

void Head::input_gradient(Tensor dx, const Tensor& dlogits, Saved&) const {
    const TraceName pass(TraceName::pass, "dX");
    ops::matmul(dx, dlogits, Transpose::no, weight_->value, Transpose::no);
}

void Head::weight_gradient(const Tensor& dlogits, const Tensor& x, Saved&) const {
    const TraceName pass(TraceName::pass, "dW");
    ops::matmul(weight_->grad, dlogits, Transpose::yes, x, Transpose::no,
                weight_->begin_contribution());
}

void Head::loss(Tensor logits, const Tensor& targets, Context& context) const {
    Tensor losses = activation({targets.numel()}, DType::fp32);  // (n)
    ops::cross_entropy(losses, logits, targets, context.training ? context.token_weight : 0);
    ops::accumulate_sum(context.loss, losses, context.token_weight);
}

void Head::forward(const Tensor& x, Saved& saved, Context& context) {
    const int64_t tokens = x.rows(), chunk = chunk_ > 0 ? chunk_ : tokens;
    const Tensor flat_x = x.view({tokens, x.cols()});                  // (N, h)
    const Tensor flat_targets = context.batch.targets.view({tokens});  // (N)
    const bool gradients_now = chunk_ > 0 && context.training;
    Tensor dx = gradients_now ? activation_like(x) : Tensor();  // (B, T, h)
    for (int64_t begin = 0; begin < tokens; begin += chunk) {
        const int64_t end = std::min(begin + chunk, tokens);
        const Tensor part = flat_x.slice(begin, end);  // (n, h)
        Tensor logits = local_logits(part);            // (n, V)
        loss(logits, flat_targets.slice(begin, end), context);
        if (gradients_now) {  // the logits now hold their gradient
            input_gradient(dx.view(flat_x.shape()).slice(begin, end), logits, saved);
            weight_gradient(logits, part, saved);
        } else {
            saved.keep("dlogits", logits);
        }
    }
    if (gradients_now)
        saved.keep("dx", dx);
    else
        saved.keep("x", x);
}

Tensor Head::backward_input(Saved& saved, Context& context) {
    if (chunk_ > 0) return saved.take("dx");
    const int64_t B = context.batch.sequences(), T = context.batch.length();
    const Tensor& weight = weight_->value;                          // (V, h)
    Tensor dx = activation({B, T, weight.cols()}, weight.dtype());  // (B, T, h)
    input_gradient(dx, saved.get("dlogits"), saved);
    return dx;
}

void Head::backward_weight(Saved& saved, Context& context) {
    if (chunk_ == 0) weight_gradient(saved.take("dlogits"), saved.take("x"), saved);
    context.contributed(*weight_);
}

Tensor Head::backward(Saved& saved, Context& context, WeightGradient when) {
    Tensor dx = backward_input(saved, context);  // (B, T, h)
    if (when == WeightGradient::now) backward_weight(saved, context);
    return dx;
}

}  // namespace ultrascale
