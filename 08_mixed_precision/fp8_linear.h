// A linear whose three products multiply 8-bit numbers:
//
//     Fprop   y  = x W^T       x, W in e4m3
//     Dgrad   dx = dy W        dy in e5m2 or e4m3 (--gradient-format), W
//     Wgrad   dW = dy^T x      dy, x
//
//     x, bf16 -> round -> [ e4m3 | scales ] --+
//                                             +--> tensor cores, sums in fp32 -> y, bf16
//     W       -> round -> [ e4m3 | scales ] --+
//
// Everything between the products (norms, attention, SwiGLU, the residual stream) stays in bf16:
// it is a small part of the time, and adds up many numbers or divides by small ones. Tensor cores
// read fp8 rows only, so a product over the tokens needs x and dy transposed; where both
// orientations are needed, one pass over the tensor writes them.
//
// It replaces only the product (Parts::gemm). A tensor-parallel linear wraps it and communicates
// around multiply(), multiply_backward() and add_weight_gradient().
//
// What is kept for Wgrad: x in bf16, or with keep_fp8 x transposed in 8 bits, half of it. (Not
// where another part keeps x anyway: o_proj's input is attention's output; down_proj's is made
// again.)
//
// Micikevicius et al. 2022 (arXiv 2209.05433); scales: scaling.h, tiles.h.
#pragma once

#include <memory>
#include <set>

#include "model/activation.h"
#include "model/llama.h"
#include "precision_options.h"
#include "scaling.h"
#include "smooth_swiglu.h"
#include "storage.h"
#include "tiles.h"

namespace ultrascale {

// What a model's linears share.
struct Fp8Shared {
    explicit Fp8Shared(const PrecisionOptions& options)
        : options(options), histories(options.history, options.margin) {}
    const PrecisionOptions options;
    AmaxHistories histories;
    Tensor last_scales;  // --trap neighbours-scale: of the input before

    Products products() const { return options.recipe.products; }
    ops::ScaleGroup tokens() const { return group_of_tokens(products()); }
    ops::ScaleGroup weights() const { return group_of_weights(products()); }
    bool delayed() const { return products() == Products::delayed; }
};

class Fp8Linear : public Linear {
public:
    Fp8Linear(std::vector<Parameter*> rows, std::shared_ptr<Fp8Shared> shared, bool keeps)
        : Linear(std::move(rows)), shared_(std::move(shared)), keeps_(keeps) {
        if (!shared_->delayed()) return;
        x_.history = shared_->histories.add(x_.dtype);
        w_.history = shared_->histories.add(w_.dtype);
        dy_.dtype = shared_->options.gradient_format;
        dy_.history = shared_->histories.add(dy_.dtype);
    }

    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        const TraceName name(TraceName::part, name_);
        Shape shape = x.shape();
        shape.back() = outputs();
        Tensor y = activation(shape, x.dtype());  // (..., out)
        const bool keeps = keeps_ && saved.enabled();
        const Both x8 = both(x, x_, context.training, true, keeps, Memory::activation);
        product(y, x8.rows, weight(context.training), residual);
        if (keeps)
            saved.keep("x8", x8.columns.values), saved.keep("x8_scales", x8.columns.scales);
        else
            saved.keep("x", x);
        return y;
    }

    Tensor backward_input(const Tensor& dy, Saved& saved, Context&) override {
        const TraceName name(TraceName::part, name_);
        Shape shape = dy.shape();
        shape.back() = inputs();
        Tensor dx = activation(shape, dy.dtype());  // (..., in)
        const Both dy8 = both(dy, gradient(), true, true, true);
        input_product(dx, dy8.rows);
        saved.keep("dy8", dy8.columns.values), saved.keep("dy8_scales", dy8.columns.scales);
        return dx;
    }

    void backward_weight(Saved& saved, Context& context) override {
        const TraceName name(TraceName::part, name_);
        // A linear that wraps this one keeps x and dy as they came.
        const auto taken = [&](const char* name, const Rounded& which) {
            const std::string in_8_bits = std::string(name) + "8", scales = in_8_bits + "_scales";
            if (saved.has(in_8_bits))
                return ops::Quantised{saved.take(in_8_bits), saved.take(scales)};
            return both(saved.take(name), which, false, false, true).columns;
        };
        const ops::Quantised dy8 = taken("dy", gradient());
        weight_product(dy8, taken("x", x_), context);
    }

    // The products alone, for a linear that wraps this one.
    void multiply(Tensor y, const Tensor& x, const Tensor& residual) override {
        product(y, both(x, x_, true, true, false).rows, weight(true), residual);
    }
    void multiply_backward(Tensor dx, const Tensor& dy) override {
        input_product(dx, both(dy, gradient(), true, true, false).rows);
    }
    void add_weight_gradient(const Tensor& dy, const Tensor& x, Context& context) override {
        weight_product(both(dy, gradient(), false, false, true).columns,
                       both(x, x_, false, false, true).columns, context);
    }

    // ---- weights that are kept in fp8 ----
    // Their scales, which lie with the weights.
    void allocate_scales() {
        weight_scales_ = Tensor::zeros(ops::scales_shape(outputs(), inputs(), shared_->weights()),
                                       DType::fp32, Memory::parameter);
    }
    // Rounds the master weights (out, in), after they have changed.
    void round_weights(const Tensor& master) {
        ops::quantise({stacked_values(parameters_), weight_scales_}, {}, master,
                      scaling(shared_->weights()));
    }

private:
    // A tensor that is rounded in every step.
    struct Rounded {
        DType dtype = DType::e4m3;
        size_t history = 0;
    };
    // In both orientations; one may be empty.
    struct Both {
        ops::Quantised rows, columns;
    };
    const Rounded& gradient() {
        dy_.dtype = shared_->options.gradient_format;
        return dy_;
    }
    ops::Scaling scaling(ops::ScaleGroup group) const {
        return {.group = group, .powers_of_two = shared_->options.powers_of_two};
    }

    // `observes`: this is the use of the step that its amax is taken from.
    // `columns_are`: the category of what is kept for backward_weight.
    Both both(const Tensor& x, const Rounded& which, bool observes, bool rows, bool columns,
              Memory columns_are = Memory::workspace) const {
        const ops::ScaleGroup group = &which == &w_ ? shared_->weights() : shared_->tokens();
        ops::Scaling how = scaling(group);
        const AmaxHistories& histories = shared_->histories;
        how.given = shared_->delayed() && !histories.is_empty();
        const auto room = [&](int64_t r, int64_t c, bool needed, Memory category) {
            if (!needed) return ops::Quantised{};
            if (!how.given) return ops::empty_quantised(r, c, which.dtype, group, category);
            return ops::Quantised{Tensor::empty({r, c}, which.dtype, category),
                                  histories.scale(which.history)};
        };
        const Both result{room(x.rows(), x.cols(), rows, Memory::workspace),
                          room(x.cols(), x.rows(), columns, columns_are)};
        ops::quantise(result.rows, result.columns, x, how,
                      shared_->delayed() && observes ? histories.amax(which.history) : Tensor());
        return result;
    }
    ops::Quantised weight(bool observes) const {  // (out, in)
        const Tensor values = stacked_values(parameters_);
        if (weight_scales_) return {values, weight_scales_};
        return both(values, w_, observes, true, false).rows;
    }
    ops::Quantised weight_transposed() const {  // (in, out)
        const Tensor values = stacked_values(parameters_);
        if (!weight_scales_) return both(values, w_, false, false, true).columns;
        const ops::Quantised transposed = ops::empty_quantised(
            inputs(), outputs(), values.dtype(), shared_->weights(), Memory::workspace);
        ops::transpose_quantised(transposed, {values, weight_scales_}, scaling(shared_->weights()));
        return transposed;
    }

    void product(Tensor y, ops::Quantised x, const ops::Quantised& w, const Tensor& residual) {
        if (shared_->options.trap == Trap::neighbours_scale) {
            const Tensor own = x.scales;
            if (shared_->last_scales && shared_->last_scales.shape() == own.shape())
                x.scales = shared_->last_scales;
            shared_->last_scales = own;
        }
        if (residual) ops::copy(y, residual);
        ops::matmul_fp8(y, x, w, {shared_->tokens(), shared_->weights(), shared_->options.fast},
                        residual ? y : Tensor());
    }
    void input_product(Tensor dx, const ops::Quantised& dy) {
        const TraceName pass(TraceName::pass, "dX");
        ops::matmul_fp8(dx, dy, weight_transposed(),
                        {shared_->tokens(), shared_->weights(), shared_->options.fast});
    }
    void weight_product(const ops::Quantised& dy, const ops::Quantised& x, Context& context) {
        const TraceName pass(TraceName::pass, "dW");
        ops::matmul_fp8(stacked_grads(parameters_), dy, x,
                        {shared_->tokens(), shared_->tokens(), shared_->options.fast},
                        begin_contributions(parameters_));
        for (Parameter* parameter : parameters_) context.contributed(*parameter);
    }

    std::shared_ptr<Fp8Shared> shared_;
    bool keeps_;
    Rounded x_, w_, dy_;
    Tensor weight_scales_;  // of weights in fp8; empty: they are rounded for each product
};

// The model's linears in fp8, for what concerns all of them.
class Fp8Linears {
public:
    explicit Fp8Linears(const PrecisionOptions& options)
        : shared_(std::make_shared<Fp8Shared>(options)) {}

    // Makes a model's linears multiply in fp8, whatever is wrapped around them.
    void add_to(Parts& parts) {
        if (!shared_->options.recipe.fp8()) return;
        parts.gemm = [this](ParameterList&, const Place&, std::vector<Parameter*> rows,
                            LinearRole) -> std::unique_ptr<Linear> {
            const std::string part = rows.front()->part();
            const bool keeps = shared_->options.keep_fp8 &&
                               (part == "self_attn.q_proj" || part == "mlp.gate_proj");
            stacks_.push_back(rows);
            if (shared_->options.smooth && part == "mlp.down_proj")
                return std::make_unique<SmoothLinear>(std::move(rows), shared_->options);
            auto linear = std::make_unique<Fp8Linear>(std::move(rows), shared_, keeps);
            linears_.push_back(linear.get());
            return linear;
        };
    }
    std::set<const Parameter*> parameters() const {
        std::set<const Parameter*> all;
        for (const auto& stack : stacks_) all.insert(stack.begin(), stack.end());
        return all;
    }
    // After the model is built: scales, and the histories' buffers.
    void allocate(ParameterList& parameters) {
        if (is_fp8(shared_->options.recipe.weights))
            for (Fp8Linear* linear : linears_) linear->allocate_scales();
        shared_->histories.allocate(parameters);
    }
    // Rounds master weights, after they have changed, to weights in fp8.
    void round_weights(Storage& storage) {
        if (!is_fp8(shared_->options.recipe.weights)) return;
        std::span<Storage::Held> held = storage.linears();
        size_t next = 0;  // stacks and parameters have the same order
        for (size_t i = 0; i < linears_.size(); ++i) {
            const size_t end = next + stacks_[i].size();
            linears_[i]->round_weights(stacked_masters(held.subspan(next, end - next)));
            next = end;
        }
    }
    AmaxHistories& histories() { return shared_->histories; }

private:
    // One matrix of all rows. With scales of their own they come to fp32 first.
    static Tensor stacked_masters(std::span<Storage::Held> stack) {
        int64_t rows = 0;
        for (const Storage::Held& h : stack) rows += h.master.size(0);
        const int64_t cols = stack.front().master.size(1);
        if (!stack.front().master_scale) return stack.front().master.extended_view({rows, cols});
        Tensor all = Tensor::empty({rows, cols}, DType::fp32, Memory::workspace);
        int64_t begin = 0;
        for (const Storage::Held& h : stack) {
            const int64_t end = begin + h.master.size(0);
            ops::copy(all.slice(begin, end), Storage::exact(h));
            begin = end;
        }
        return all;
    }
    std::shared_ptr<Fp8Shared> shared_;
    std::vector<Fp8Linear*> linears_;  // the model owns them
    std::vector<std::vector<Parameter*>> stacks_;
};

}  // namespace ultrascale
