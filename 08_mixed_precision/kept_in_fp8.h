// What SwiGLU keeps for its backward, in 8 bits: gate and up, which are most of a layer's
// activations. Each 128 features of a token have a scale (tiles.h), so a number keeps its 4 bits of
// mantissa beside any outlier.
//
//     kept of a layer, bytes a token      bf16              --keep-fp8
//     two norms' inputs                   4 h               4 h            the residual stream
//     inputs of q,k,v and of gate,up      4 h               2 h  + scales  (fp8_linear.h)
//     q, k, v, o                          4 H D + 4 K D     the same
//     gate, up                            4 F               2 F  + scales
//
// DeepSeek-V3 Technical Report, section 3.3.3 (arXiv 2412.19437).
#pragma once

#include <memory>

#include "core/ops_fp8.h"
#include "model/activation.h"
#include "model/llama.h"

namespace ultrascale {

class FeedForwardKeptInFp8 : public FeedForward {
public:
    explicit FeedForwardKeptInFp8(std::unique_ptr<FeedForward> inner) : inner_(std::move(inner)) {}

    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override {
        Tensor y = inner_->forward(x, residual, saved, context);
        if (!saved.enabled()) return y;
        const Tensor gate_up = saved.take("gate_up");  // (B, T, 2 F)
        const ops::Quantised kept = ops::empty_quantised(
            gate_up.rows(), gate_up.cols(), DType::e4m3, ops::ScaleGroup::tile, Memory::activation);
        ops::quantise(kept, {}, gate_up, {.group = ops::ScaleGroup::tile});
        saved.keep("gate_up8", kept.values), saved.keep("gate_up_scales", kept.scales);
        return y;
    }
    Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                    WeightGradient when) override {
        Shape shape = dy.shape();
        {
            const ops::Quantised kept{saved.take("gate_up8"), saved.take("gate_up_scales")};
            shape.back() = kept.values.cols();
            Tensor gate_up = activation(shape, dy.dtype());
            ops::dequantise(gate_up, kept, ops::ScaleGroup::tile);
            saved.keep("gate_up", gate_up);
        }
        return inner_->backward(dy, saved, context, when);
    }
    void backward_weight(Saved& saved, Context& context) override {
        inner_->backward_weight(saved, context);
    }

private:
    std::unique_ptr<FeedForward> inner_;
};

}  // namespace ultrascale
