// The output head in fp8 (--head fp8), which the recipes leave in bf16. It has three products, as
// any linear, and in each of them the whole vocabulary is one dimension. It makes training faster
// by 9 % with `tensor` and by 6 % with `deepseek` (8 layers of Llama-3-8B, H100).
//
//     logits = x W^T       dx = dlogits W       dW = dlogits^T x       W (V, h)
//
// With Llama-3-8B's 128,256 words the head costs as much as 2.4 layers: nearly a quarter of all
// products in a model cut to 8 layers. Recipes leave it in bf16 all the same, because its errors go
// straight into the loss. And dlogits = softmax - [target] has one number near 1 a token beside
// thousands near 1e-5, which with one scale are subnormal in e4m3, though not in e5m2. MEASURED.md
// shows what it costs.
//
// x, the logits and the weights stay in bf16, so a tied embedding works as before; each product
// rounds its operands. If the loss comes in chunks of tokens, weights are rounded once for all.
//
// DeepSeek-V3 Technical Report, section 3.3.1 (arXiv 2412.19437), keeps its head in bf16.
#pragma once

#include "6_fp8_linear.h"

namespace ultrascale::mixed_precision {

// `Plain` is the head that communicates and computes the loss; this one only multiplies for it.
template <class Plain>
class Fp8Head : public Plain {
public:
    template <class... Arguments>
    explicit Fp8Head(std::shared_ptr<Fp8Shared> shared, Arguments&&... plain)
        : Plain(std::forward<Arguments>(plain)...),
          shared_(shared),
          product_(std::make_unique<Fp8Linear>(std::vector{this->weight_}, shared, false)) {}

    Tensor logits(const Tensor& x) const override {
        shared_->observes = false;
        Tensor logits = Plain::logits(x);
        shared_->observes = true;
        return logits;
    }
    void forward(const Tensor& x, Saved& saved, Context& context) override {
        shared_->observes = context.training;
        if (this->chunk_ > 0 && context.training) product_->weights().hold();
        Plain::forward(x, saved, context);
        product_->weights().release();
        shared_->observes = true;
    }

protected:
    Tensor local_logits(const Tensor& x) const override {
        Shape shape = x.shape();
        shape.back() = product_->outputs();
        Tensor logits = activation(shape, x.dtype());  // (..., V)
        product_->multiply(logits, x, {});
        return logits;
    }
    // Both gradients need dlogits, which is large, so it is read once for the two.
    void input_gradient(Tensor dx, const Tensor& dlogits, Saved& saved) const override {
        const auto [rows, columns] = product_->gradient_rounding().both(dlogits, {.columns = true});
        product_->input_product(dx, rows);
        saved.keep("dlogits8", columns.values), saved.keep("dlogits8_scales", columns.scales);
    }
    void weight_gradient(const Tensor&, const Tensor& x, Saved& saved) const override {
        product_->weight_product({saved.take("dlogits8"), saved.take("dlogits8_scales")},
                                 product_->input_rounding().columns(x));
    }

private:
    std::shared_ptr<Fp8Shared> shared_;
    std::unique_ptr<Fp8Linear> product_;
};

}  // namespace ultrascale::mixed_precision
