// Quantisation fused into what comes before it. A linear's input is made by a norm, or by SwiGLU,
// only to be rounded to 8 bits. If the operation that makes it rounds it at once, the 16-bit tensor
// is never written, nor read:
//
//     bytes of an element, forward          by itself                     fused
//     norm (a scale for each row, tile)     read 2, write 2 | 2, 1        read 2, write 1
//     norm (a scale for the tensor)         2, 2 | amax 2 | 2, 1          amax 2 | 2, 1
//     SwiGLU (two inputs for an output)     4, 2 | 2, 1                   4, 1
//
// (Scales of rows read the input once more in the pass by itself; delayed ones need no amax pass.)
// The results are the same bits.
//
//     residual stream x --+---------------------------- kept by the norm, for its own backward
//                         +--> norm -> [ e4m3 | scales ] -> q, k, v
//
// But what about dW, which reads the linear's input x transposed? With one scale for the tensor it
// is the same numbers: the 8-bit rows are kept instead of 16-bit ones, half as much, and transposed
// in backward. Scales of rows and tiles differ between the two orientations; rounding the 8-bit
// numbers once more would lose bits. So nothing is kept, and the norm is computed again in backward
// from its own input, as DeepSeek-V3 does (section 3.2.3): one more pass, but 2 bytes less for each
// element. SwiGLU's output was never kept.
//
// The residual is not part of this: the products of o_proj and down_proj add it where they store
// their sums, without a copy, and the norm reads the result. The final norm is left alone; the head
// keeps its input in bf16.
#pragma once

#include "6_fp8_linear.h"

namespace ultrascale::mixed_precision {

// A norm whose output leaves in 8 bits, for the linear behind it.
class FusedNorm : public Norm {
public:
    explicit FusedNorm(const Norm& plain) : Norm(plain) {}

    void feeds(Fp8Linear& linear) {
        linear_ = &linear;
        linear.restore = [this](const Tensor& x, const Tensor&) { return output(x); };
    }
    // Returns the numbers, e4m3, in x's shape; their scales go to the linear.
    Tensor forward(const Tensor& x, Saved& saved, Context& context) override {
        if (!linear_) return Norm::forward(x, saved, context);
        const TraceName name(TraceName::part, name_);
        const bool keeps_rows = linear_->one_scale() && saved.enabled();
        const Fp8Linear::QuantisedOutput to =
            linear_->quantised_input(x.rows(), x.cols(), context.training,
                                     keeps_rows ? Memory::activation : Memory::workspace);
        const Tensor rstd = activation({x.rows()}, DType::fp32);  // (N)
        ops::rmsnorm_forward_quantised(to.x, rstd, x, weight_->value, eps_, to.how, to.amax);
        saved.keep("x", x);
        saved.keep("rstd", rstd);
        linear_->prepare({to.x, keeps_rows ? to.x.values : x, keeps_rows ? to.x.scales : Tensor()});
        return to.x.values.view(x.shape());
    }

private:
    // The same bits as a plain norm's.
    Tensor output(const Tensor& x) const {
        const Tensor y = Tensor::empty(x.shape(), x.dtype(), Memory::workspace),
                     rstd = Tensor::empty({x.rows()}, DType::fp32, Memory::workspace);
        ops::rmsnorm_forward(y, rstd, x, weight_->value, eps_);
        return y;
    }
    Fp8Linear* linear_ = nullptr;  // of the same layer; the final norm has none
};

// SwiGLU's output leaves in 8 bits. Its backward writes the gradients of gate and up in bf16, as
// their scale is not known before the last of them; but it knows their largest magnitude then, so
// that nobody has to look for it.
class FusedSwiGLU : public SwiGLU {
public:
    FusedSwiGLU(SwiGLU&& plain, Fp8Linear& gate_up, Fp8Linear& down)
        : SwiGLU(std::move(plain)), gate_up8_(gate_up), down8_(down) {}

    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override {
        Tensor gate_up = gate_up_->forward(x, saved["gate_up_proj"], context);  // (B, T, 2 F)
        Shape shape = gate_up.shape();
        shape.back() /= 2;
        const Fp8Linear::QuantisedOutput to = down8_.quantised_input(
            gate_up.rows(), shape.back(), context.training, Memory::workspace);
        ops::swiglu_forward_quantised(to.x, gate_up, to.how, to.amax);
        saved.keep("gate_up", std::move(gate_up));
        down8_.prepare({to.x});
        return down_->forward(to.x.values.view(shape), saved["down_proj"], context, residual);
    }

private:
    void gradient(Tensor dgate_up, Tensor da, const Tensor& gate_up) override {
        if (!gate_up8_.measures_once()) return SwiGLU::gradient(dgate_up, da, gate_up);
        const Tensor amax = Tensor::zeros({1}, DType::fp32, Memory::workspace);
        ops::swiglu_backward(dgate_up, da, gate_up, {}, {}, amax);
        gate_up8_.hand_gradient_amax(amax);
    }
    Fp8Linear &gate_up8_, &down8_;  // gate_up_ and down_, or inside them
};

// Fuses wherever a norm, or SwiGLU, meets an Fp8Linear. A linear that communicates first (chapter
// 03's) needs its input as it is, so this is for parts without one.
inline void fuse_quantisation(ModuleFactories& factories) {
    struct Built {
        FusedNorm* norm = nullptr;
        Fp8Linear *gate_up = nullptr, *down = nullptr;
    };
    const auto last = std::make_shared<Built>();  // in the model's order
    factories.norm = [last, plain = factories.norm](ParameterList& list, const ModulePath& path) {
        auto norm = std::make_unique<FusedNorm>(*plain(list, path));
        last->norm = norm.get();
        return norm;
    };
    factories.gemm = [last, plain = factories.gemm](ParameterList& list, const ModulePath& path,
                                                    std::vector<Parameter*> rows, LinearRole role) {
        const std::string part = rows.front()->part();
        std::unique_ptr<Linear> linear = plain(list, path, std::move(rows), role);
        auto* fp8 = dynamic_cast<Fp8Linear*>(linear.get());  // null: smoothed
        if (fp8 && (part == "self_attn.q_proj" || part == "mlp.gate_proj")) last->norm->feeds(*fp8);
        if (part == "mlp.gate_proj") last->gate_up = fp8;
        last->down = part == "mlp.down_proj" ? fp8 : nullptr;
        return linear;
    };
    factories.feed_forward = [last, plain = factories.feed_forward](
                                 ParameterList& list, const ModuleFactories& all,
                                 const ModulePath& layer) -> std::unique_ptr<FeedForward> {
        std::unique_ptr<FeedForward> made = plain(list, all, layer);
        auto* swiglu = dynamic_cast<SwiGLU*>(made.get());
        if (!swiglu || !last->down) return made;
        return std::make_unique<FusedSwiGLU>(std::move(*swiglu), *last->gate_up, *last->down);
    };
}

}  // namespace ultrascale::mixed_precision
