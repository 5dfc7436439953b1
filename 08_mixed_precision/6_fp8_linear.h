// The linear in fp8 that all recipes share. If one scale serves a tensor, its products are the
// plain linear's (2_plain_fp8_linear.h), bit by bit. It adds:
//
//     scales     of rows, tiles and blocks, or remembered (5_tiles.h, 5_delayed_scales.h)
//     passes     one writes both orientations of dy, and none measures a scale a second time
//                (6_rounding.h, 6_fp8_weights.h): from 1.26 to 1.30 times bf16's speed (`tensor`,
//                8 layers of Llama-3-8B, H200)
//     memory     kept for dW is dy in 8 bits, and of x what the part before it hands over
//                (7_fused_quantisation.h, 7_kept_in_fp8.h), or with keep_fp8 x transposed, in 8
//                bits: the README's model has 6.70 MiB of activations, the plain linear's 7.20
//
// (Nothing of x is kept if another part keeps it anyway: o_proj's input is attention's output.
// down_proj's input is computed again.)
//
// It replaces only the product (ModuleFactories::gemm). A tensor-parallel linear wraps it and
// communicates around multiply(), multiply_backward() and add_weight_gradient(). Then W, and x or
// dy, are this rank's parts, and a measured scale is that of the part. It is at most the whole
// tensor's scale, so the rounding differs from one device's, but is no worse, and no amax is sent.
// The scales of tiles and blocks are one device's if parts are multiples of 128, and so are delayed
// scales if ranks agree on the amax.
#pragma once

#include <memory>

#include "6_fp8_weights.h"
#include "model/activation.h"
#include "model/parts.h"

namespace ultrascale::mixed_precision {

class Fp8Linear : public Linear {
public:
    Fp8Linear(std::vector<Parameter*> rows, std::shared_ptr<Fp8Shared> shared, bool keeps)
        : Linear(std::move(rows)),
          shared_(std::move(shared)),
          keeps_(keeps),
          x_(*shared_, DType::e4m3, shared_->tokens()),
          weights_(parameters_, *shared_),
          dy_(*shared_, shared_->options.gradient_format, shared_->tokens()) {}

    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        const TraceName name(TraceName::part, name_);
        const PreparedInput handed = std::exchange(prepared_, {});
        Shape shape = x.shape();
        shape.back() = outputs();
        Tensor y = activation(shape, handed.rows ? activations() : x.dtype());
        const bool keeps = keeps_ && saved.enabled() && !handed.rows && !handed.kept;
        const RowsAndColumns x8 = handed.rows ? RowsAndColumns{handed.rows, {}}
                                              : x_.both(x, {.columns = keeps,
                                                            .observes = context.training,
                                                            .columns_are = Memory::activation});
        shared_->multiply(y, x8.rows, weights_.rows(context.training), residual);
        // (With --keep-fp8, backward computes an x from gate and up that differs from this one.)
        if (shared_->measures_once() && !handed.kept && !keeps && !shared_->options.keep_fp8)
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
        const RowsAndColumns dy8 =
            dy_.both(dy, {.columns = true, .known = std::exchange(handed_gradient_scale_, {})});
        input_product(dx, dy8.rows);
        saved.keep("dy8", dy8.columns.values), saved.keep("dy8_scales", dy8.columns.scales);
        return dx;
    }

    void backward_weight(Saved& saved, Context& context) override {
        const TraceName name(TraceName::part, name_);
        // A linear that wraps this one keeps x and dy unrounded.
        const auto taken = [&](const std::string& name, const Rounding& rounding) {
            if (saved.has(name + "8"))
                return ops::Quantised{saved.take(name + "8"), saved.take(name + "8_scales")};
            const std::string scale = name + "_scale";
            return rounding.columns(saved.take(name),
                                    saved.has(scale) ? saved.take(scale) : Tensor());
        };
        const ops::Quantised dy8 = taken("dy", dy_);
        const ops::Quantised x8 = saved.has("kept") ? restored(saved) : taken("x", x_);
        report(dy8, x8, context);
    }

    // The products alone, called by a linear that wraps this one.
    void multiply(Tensor y, const Tensor& x, const Tensor& residual) override {
        const bool observes = shared_->observes;
        shared_->multiply(y, x_.rows(x, observes), weights_.rows(observes), residual);
    }
    void multiply_backward(Tensor dx, const Tensor& dy) override {
        input_product(dx, dy_.rows(dy));
    }
    void add_weight_gradient(const Tensor& dy, const Tensor& x, Context& context) override {
        report(dy_.columns(dy), x_.columns(x), context);
    }

    // ---- for the parts before it, which may round x by themselves, or keep it in another way ----
    // What such a part passes to the next forward.
    struct PreparedInput {
        ops::Quantised rows = {};  // x, rounded already: forward is then given these numbers as x
        // Kept for Wgrad instead of x: these rows, if they have one scale, or the tensors from
        // which restore() computes x. Empty: nothing is kept.
        Tensor kept = {}, scales = {};
    };
    void prepare(PreparedInput handed) { prepared_ = std::move(handed); }
    std::function<Tensor(const Tensor& kept, const Tensor& scales)> restore;

    const Fp8Shared& shared() const { return *shared_; }
    const Rounding& input_rounding() const { return x_; }
    DType activations() const { return shared_->options.recipe.activations; }
    // Computes dy's scale (1) from its largest magnitude, which is known, for the next backward.
    void hand_gradient_amax(const Tensor& amax) {
        handed_gradient_scale_ = Tensor::empty({1}, DType::fp32, Memory::workspace);
        ops::scale_of_amax(handed_gradient_scale_, amax, dy_.dtype(),
                           shared_->options.powers_of_two);
    }

    // ---- for the head, which computes its products in another order ----
    const Rounding& gradient_rounding() const { return dy_; }
    Fp8Weights& weights() { return weights_; }
    void input_product(Tensor dx, const ops::Quantised& dy) {
        const TraceName pass(TraceName::pass, "dX");
        ops::matmul_fp8(dx, dy, weights_.transposed(),
                        {shared_->tokens(), shared_->weights(), shared_->options.fast_backward()});
    }
    void weight_product(const ops::Quantised& dy, const ops::Quantised& x) {
        const TraceName pass(TraceName::pass, "dW");
        ops::matmul_fp8(stacked_grads(parameters_), dy, x,
                        {shared_->tokens(), shared_->tokens(), shared_->options.fast_backward()},
                        begin_contributions(parameters_));
    }

private:
    // Returns x transposed, from the tensors that another part has passed.
    ops::Quantised restored(Saved& saved) const {
        const Tensor kept = saved.take("kept"),
                     scales = saved.has("kept_scales") ? saved.take("kept_scales") : Tensor();
        if (!is_fp8(kept.dtype())) return x_.columns(restore(kept, scales));
        const ops::Quantised columns{
            Tensor::empty({kept.cols(), kept.rows()}, kept.dtype(), Memory::workspace), scales};
        ops::transpose_quantised(columns, {kept, scales}, x_.scaling());
        return columns;
    }
    void report(const ops::Quantised& dy, const ops::Quantised& x, Context& context) {
        weight_product(dy, x);
        for (Parameter* parameter : parameters_) context.contributed(*parameter);
    }

    std::shared_ptr<Fp8Shared> shared_;
    bool keeps_;
    Rounding x_;
    Fp8Weights weights_;
    Rounding dy_;
    Tensor handed_gradient_scale_;  // of the next dy, if its amax is known
    PreparedInput prepared_;
};

}  // namespace ultrascale::mixed_precision
