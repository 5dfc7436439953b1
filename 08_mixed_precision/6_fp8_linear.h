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
// around multiply(), multiply_backward() and add_weight_gradient(). Then W, and x or dy, are this
// rank's part. A measured scale is that of the part: smaller than the whole's or equal, so the
// rounding differs from one device's, but is no worse, and no amax is sent. Tiles and blocks are
// the same if parts are multiples of 128; delayed scales, if ranks agree on the amax (5_delayed_scales.h).
//
// A measured scale of the whole tensor is measured once: backward rounds W, and an x that was kept
// in bf16, by the scale of forward, and so reads them once instead of twice.
//
// What is kept for Wgrad: x in bf16, or with keep_fp8 x transposed in 8 bits, half of it. (Not
// where another part keeps x anyway: o_proj's input is attention's output; down_proj's is made
// again.) The part before the linear may round x itself, or keep it in its own way: it hands this
// to the linear (7_fused_quantisation.h, 7_kept_in_fp8.h).
//
// Micikevicius et al. 2022 (arXiv 2209.05433); scales: 5_delayed_scales.h, 5_tiles.h.
#pragma once

#include <memory>

#include "5_delayed_scales.h"
#include "5_tiles.h"
#include "model/activation.h"
#include "model/llama.h"
#include "precision_options.h"

namespace ultrascale::mixed_precision {

// What a model's linears share.
struct Fp8Shared {
    explicit Fp8Shared(const PrecisionOptions& options)
        : options(options), histories(options.history, options.margin) {}
    const PrecisionOptions options;
    AmaxHistories histories;
    bool observes = true;  // false in validation, whose magnitudes are no part of the history
    Tensor last_scales;    // --trap neighbours-scale: of the input before

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

    // What the part before this linear hands to the next forward.
    struct PreparedInput {
        ops::Quantised rows = {};  // x, rounded already: then forward is given these numbers as x
        // Kept for Wgrad instead of x: these rows, if they have one scale, or what restore() makes
        // x from. Empty: nothing is kept.
        Tensor kept = {}, scales = {};
    };
    void prepare(PreparedInput handed) { prepared_ = std::move(handed); }
    std::function<Tensor(const Tensor& kept, const Tensor& scales)> restore;

    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        const TraceName name(TraceName::part, name_);
        const PreparedInput handed = std::exchange(prepared_, {});
        Shape shape = x.shape();
        shape.back() = outputs();
        Tensor y = activation(shape, handed.rows ? activations() : x.dtype());
        const bool keeps = keeps_ && saved.enabled() && !handed.rows && !handed.kept;
        const RowsAndColumns x8 =
            handed.rows ? RowsAndColumns{handed.rows, {}}
                        : both(x, x_, context.training, true, keeps, Memory::activation);
        product(y, x8.rows, weight(context.training), residual);
        // (Kept in fp8, gate and up make an x that differs from this one.)
        if (measures_once() && !handed.kept && !keeps && !shared_->options.keep_fp8)
            saved.keep("x_scale", x8.rows.scales);
        if (handed.kept) saved.keep("kept", handed.kept);
        if (handed.scales) saved.keep("kept_scales", handed.scales);
        if (keeps)
            saved.keep("x8", x8.columns.values), saved.keep("x8_scales", x8.columns.scales);
        else if (!handed.rows && !handed.kept)
            saved.keep("x", x);
        return y;
    }

    Tensor backward_input(const Tensor& dy, Saved& saved, Context&) override {
        const TraceName name(TraceName::part, name_);
        Shape shape = dy.shape();
        shape.back() = inputs();
        Tensor dx = activation(shape, dy.dtype());  // (..., in)
        const RowsAndColumns dy8 = both(dy, gradient(), true, true, true, Memory::workspace,
                                        std::exchange(handed_gradient_scale_, {}));
        input_product(dx, dy8.rows);
        saved.keep("dy8", dy8.columns.values), saved.keep("dy8_scales", dy8.columns.scales);
        return dx;
    }

    void backward_weight(Saved& saved, Context& context) override {
        const TraceName name(TraceName::part, name_);
        // A linear that wraps this one keeps x and dy as they came.
        const auto taken = [&](const std::string& name, const Rounded& which) {
            if (saved.has(name + "8"))
                return ops::Quantised{saved.take(name + "8"), saved.take(name + "8_scales")};
            const std::string scale = name + "_scale";
            return columns_of(saved.take(name), which,
                              saved.has(scale) ? saved.take(scale) : Tensor());
        };
        const ops::Quantised dy8 = taken("dy", gradient());
        const ops::Quantised x8 = saved.has("kept") ? restored(saved) : taken("x", x_);
        report(dy8, x8, context);
    }

    // The products alone, for a linear that wraps this one.
    void multiply(Tensor y, const Tensor& x, const Tensor& residual) override {
        const bool observes = shared_->observes;
        product(y, both(x, x_, observes, true, false).rows, weight(observes), residual);
    }
    void multiply_backward(Tensor dx, const Tensor& dy) override {
        input_product(dx, both(dy, gradient(), true, true, false).rows);
    }
    void add_weight_gradient(const Tensor& dy, const Tensor& x, Context& context) override {
        report(columns_of(dy, gradient()), columns_of_input(x), context);
    }

    // ---- for parts that round by themselves, or once for several products ----
    // Both orientations of a matrix; one may be empty.
    struct RowsAndColumns {
        ops::Quantised rows, columns;
    };
    // Where x (rows, cols) is rounded to by the operation that makes it, and how; where it leaves
    // its amax.
    struct QuantisedOutput {
        ops::Quantised x;
        ops::Scaling how;
        Tensor amax;
    };
    QuantisedOutput quantised_input(int64_t rows, int64_t cols, bool training,
                                    Memory category) const {
        const ops::Scaling how = scaling_of(x_);
        return {empty(x_, rows, cols, category), how,
                shared_->delayed() && training ? shared_->histories.amax(x_.history) : Tensor()};
    }
    DType activations() const { return shared_->options.recipe.activations; }
    // Whether x transposed is the same numbers, and not rounded with scales of its own.
    bool one_scale() const { return shared_->tokens() == ops::ScaleGroup::tensor; }
    // Whether that scale is measured (and then not again in the same step), or remembered.
    bool measures_once() const { return one_scale() && !shared_->delayed(); }
    ops::Quantised columns_of_input(const Tensor& x) const { return columns_of(x, x_); }
    // For the next backward: dy's scale, (1), from its largest magnitude, which is known.
    void hand_gradient_amax(const Tensor& amax) {
        handed_gradient_scale_ = Tensor::empty({1}, DType::fp32, Memory::workspace);
        ops::scale_of_amax(handed_gradient_scale_, amax, gradient().dtype,
                           shared_->options.powers_of_two);
    }
    RowsAndColumns rounded_gradient(const Tensor& dy) {
        return both(dy, gradient(), true, true, true);
    }
    void hold_weights() { held_ = both(stacked_values(parameters_), w_, true, true, true); }
    void release_weights() { held_ = {}; }
    void input_product(Tensor dx, const ops::Quantised& dy) {
        const TraceName pass(TraceName::pass, "dX");
        ops::matmul_fp8(dx, dy, weight_transposed(),
                        {shared_->tokens(), shared_->weights(), shared_->options.fast_backward()});
    }
    void weight_product(const ops::Quantised& dy, const ops::Quantised& x) {
        const TraceName pass(TraceName::pass, "dW");
        ops::matmul_fp8(stacked_grads(parameters_), dy, x,
                        {shared_->tokens(), shared_->tokens(), shared_->options.fast_backward()},
                        begin_contributions(parameters_));
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
    const Rounded& gradient() {
        dy_.dtype = shared_->options.gradient_format;
        return dy_;
    }
    ops::Scaling scaling(ops::ScaleGroup group) const {
        return {.group = group, .powers_of_two = shared_->options.powers_of_two};
    }

    ops::ScaleGroup group_of(const Rounded& which) const {
        return &which == &w_ ? shared_->weights() : shared_->tokens();
    }
    // `known`: its scale, where it has been measured.
    ops::Scaling scaling_of(const Rounded& which, const Tensor& known = {}) const {
        ops::Scaling how = scaling(group_of(which));
        how.given = known || (shared_->delayed() && !shared_->histories.is_empty());
        return how;
    }
    // Room for such a tensor, with the scale that is known or remembered where there is one.
    ops::Quantised empty(const Rounded& which, int64_t r, int64_t c, Memory category,
                         const Tensor& known = {}) const {
        if (!scaling_of(which, known).given)
            return ops::empty_quantised(r, c, which.dtype, group_of(which), category);
        return {Tensor::empty({r, c}, which.dtype, category),
                known ? known : shared_->histories.scale(which.history)};
    }

    // `observes`: this is the use of the step that its amax is taken from.
    // `columns_are`: the category of what is kept for backward_weight.
    RowsAndColumns both(const Tensor& x, const Rounded& which, bool observes, bool rows,
                        bool columns, Memory columns_are = Memory::workspace,
                        const Tensor& known = {}) const {
        RowsAndColumns result;
        if (rows) result.rows = empty(which, x.rows(), x.cols(), Memory::workspace, known);
        if (columns) result.columns = empty(which, x.cols(), x.rows(), columns_are, known);
        ops::quantise(
            result.rows, result.columns, x, scaling_of(which, known),
            shared_->delayed() && observes ? shared_->histories.amax(which.history) : Tensor());
        return result;
    }
    ops::Quantised columns_of(const Tensor& x, const Rounded& which,
                              const Tensor& known = {}) const {
        return both(x, which, false, false, true, Memory::workspace, known).columns;
    }
    // x transposed, from what another part has handed over.
    ops::Quantised restored(Saved& saved) const {
        const Tensor kept = saved.take("kept"),
                     scales = saved.has("kept_scales") ? saved.take("kept_scales") : Tensor();
        if (!is_fp8(kept.dtype())) return columns_of_input(restore(kept, scales));
        const ops::Quantised columns{
            Tensor::empty({kept.cols(), kept.rows()}, kept.dtype(), Memory::workspace), scales};
        ops::transpose_quantised(columns, {kept, scales}, scaling(ops::ScaleGroup::tensor));
        return columns;
    }
    ops::Quantised weight(bool observes) {  // (out, in)
        const Tensor values = stacked_values(parameters_);
        if (held_.rows) return held_.rows;
        if (weight_scales_) return {values, weight_scales_};
        const ops::Quantised rows = both(values, w_, observes, true, false).rows;
        if (measures_once()) measured_weight_scale_ = rows.scales;
        return rows;
    }
    ops::Quantised weight_transposed() const {  // (in, out)
        if (held_.columns) return held_.columns;
        const Tensor values = stacked_values(parameters_);
        if (!weight_scales_) return columns_of(values, w_, measured_weight_scale_);
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
        ops::matmul_fp8(y, x, w,
                        {shared_->tokens(), shared_->weights(), shared_->options.fast_forward()},
                        residual);
    }
    void report(const ops::Quantised& dy, const ops::Quantised& x, Context& context) {
        weight_product(dy, x);
        for (Parameter* parameter : parameters_) context.contributed(*parameter);
    }

    std::shared_ptr<Fp8Shared> shared_;
    bool keeps_;
    Rounded x_, w_, dy_;
    Tensor weight_scales_;          // of weights in fp8; empty: they are rounded for each product
    Tensor measured_weight_scale_;  // of weights in 16 bits, by the last forward; may be empty
    Tensor handed_gradient_scale_;  // of the next dy, where the part before has its amax
    RowsAndColumns held_;           // weights rounded for several products
    PreparedInput prepared_;
};

}  // namespace ultrascale::mixed_precision
