// Quantisation fused into the operation before it. A norm, or SwiGLU, computes a linear's input
// only for it to be rounded to 8 bits. If the same operation rounds it at once, the 16-bit tensor
// is never written nor read: `deepseek` is 1 % faster than with --unfused, and holds 1.0 GiB less
// (8 layers of Llama-3-8B, H200).
//
//     bytes of an element, forward          by itself                     fused
//     norm (a scale for each row, tile)     read 2, write 2 | 2, 1        read 2, write 1
//     norm (a scale for the tensor)         2, 2 | amax 2 | 2, 1          amax 2 | 2, 1
//     SwiGLU (two inputs for an output)     4, 2 | 2, 1                   4, 1
//
// (With scales of rows, the pass by itself reads the input once more; with delayed scales no pass
// for amax is needed.) The results are the same bits.
//
//     residual stream x --+---------------------------- kept by the norm, for its own backward
//                         +--> norm -> [ e4m3 | scales ] -> q, k, v
//
// But dW needs the linear's input x transposed. With one scale for the tensor, that has the same
// numbers: the 8-bit rows are kept instead of 16-bit ones, which takes half as much, and they are
// transposed in backward. Scales of rows and tiles differ between the two orientations, and
// rounding the 8-bit numbers once more would lose bits. So nothing is kept, and backward computes
// the norm again from its own input, as DeepSeek-V3 does (section 3.2.3): this takes one more pass,
// but saves 2 bytes for each element. SwiGLU's output was never kept.
//
// The residual is not part of this: the products of o_proj and down_proj add it when they store
// their sums, without a copy, and the norm reads the result. The final norm is unchanged, because
// the head keeps its input in bf16.
#pragma once

#include "6_fp8_linear.h"
#include "fp8_parts.h"

namespace ultrascale::mixed_precision {

// A norm that writes its output in 8 bits, for the linear behind it.
class FusedNorm : public Norm {
public:
    explicit FusedNorm(const Norm& plain) : Norm(plain) {}

    void feeds(Fp8Linear& linear) {
        linear_ = &linear;
        linear.restore = [this](const Tensor& x, const Tensor&) { return output(x); };
    }
    // Returns e4m3 numbers in x's shape; passes their scales to the linear.
    Tensor forward(const Tensor& x, Saved& saved, Context& context) override {
        if (!linear_) return Norm::forward(x, saved, context);
        const TraceName name(TraceName::part, name_);
        const Rounding& to = linear_->input_rounding();
        const bool keeps_rows = linear_->shared().one_scale() && saved.enabled();
        const ops::Quantised y =
            to.empty(x.rows(), x.cols(), keeps_rows ? Memory::activation : Memory::workspace);
        const Tensor rstd = activation({x.rows()}, DType::fp32);  // (N)
        ops::rmsnorm_forward_quantised(y, rstd, x, weight_->value, eps_, to.scaling(),
                                       context.training ? to.amax() : Tensor());
        saved.keep("x", x);
        saved.keep("rstd", rstd);
        linear_->prepare({y, keeps_rows ? y.values : x, keeps_rows ? y.scales : Tensor()});
        return y.values.view(x.shape());
    }

private:
    // Computes the same bits as a plain norm.
    Tensor output(const Tensor& x) const {
        const Tensor y = Tensor::empty(x.shape(), x.dtype(), Memory::workspace),
                     rstd = Tensor::empty({x.rows()}, DType::fp32, Memory::workspace);
        ops::rmsnorm_forward(y, rstd, x, weight_->value, eps_);
        return y;
    }
    Fp8Linear* linear_ = nullptr;  // in the same layer; null for the final norm
};

// A SwiGLU that writes its output in 8 bits. Its backward writes the gradients of gate and up in
// bf16, because their scale is not known until the last of them is. But then it knows their largest
// magnitude, so nobody has to search for it.
class FusedSwiGLU : public SwiGLU {
public:
    FusedSwiGLU(SwiGLU&& plain, Fp8Linear& gate_up, Fp8Linear& down)
        : SwiGLU(std::move(plain)), gate_up8_(gate_up), down8_(down) {}

    Tensor forward(const Tensor& x, const Tensor& residual, Saved& saved,
                   Context& context) override {
        Tensor gate_up = gate_up_->forward(x, saved["gate_up_proj"], context);  // (B, T, 2 F)
        Shape shape = gate_up.shape();
        shape.back() /= 2;
        const Rounding& to = down8_.input_rounding();
        const ops::Quantised a = to.empty(gate_up.rows(), shape.back(), Memory::workspace);
        ops::swiglu_forward_quantised(a, gate_up, to.scaling(),
                                      context.training ? to.amax() : Tensor());
        saved.keep("gate_up", std::move(gate_up));
        down8_.prepare({a});
        return down_->forward(a.values.view(shape), saved["down_proj"], context, residual);
    }

private:
    void gradient(Tensor dgate_up, Tensor da, const Tensor& gate_up) override {
        if (!gate_up8_.shared().measures_once()) return SwiGLU::gradient(dgate_up, da, gate_up);
        const Tensor amax = Tensor::zeros({1}, DType::fp32, Memory::workspace);
        ops::swiglu_backward(dgate_up, da, gate_up, {}, {}, amax);
        gate_up8_.hand_gradient_amax(amax);
    }
    Fp8Linear &gate_up8_, &down8_;  // gate_up_ and down_, or inside them
};

// Fuses every norm, and every SwiGLU, with the Fp8Linears next to it; pairs are found by their
// names. A linear that communicates first (chapter 03's) needs its input in 16 bits, so this is for
// models without such linears.
inline void fuse_quantisation(ModuleFactories& factories, Fp8Linears& linears) {
    factories.norm = [&linears, plain = factories.norm](ParameterList& list,
                                                        const ModulePath& path) {
        auto norm = std::make_unique<FusedNorm>(*plain(list, path));
        const std::string layer = path.name.substr(0, path.name.rfind('.'));
        const bool first = path.name.ends_with("input_layernorm");
        if (path.layer != ModulePath::no_layer)
            linears.when_built(layer + (first ? ".self_attn.q_proj" : ".mlp.gate_proj"),
                               [norm = norm.get()](Fp8Linear& linear) { norm->feeds(linear); });
        return norm;
    };
    factories.feed_forward = [&linears, plain = factories.feed_forward](
                                 ParameterList& list, const ModuleFactories& all,
                                 const ModulePath& layer) -> std::unique_ptr<FeedForward> {
        std::unique_ptr<FeedForward> made = plain(list, all, layer);  // with its linears
        const ModulePath mlp = layer.part("mlp");
        Fp8Linear *const gate_up = linears.find(mlp.part("gate_proj").name),
                         *const down = linears.find(mlp.part("down_proj").name);
        auto* swiglu = dynamic_cast<SwiGLU*>(made.get());
        if (!swiglu || !down) return made;  // down_proj may be smoothed
        return std::make_unique<FusedSwiGLU>(std::move(*swiglu), *gate_up, *down);
    };
}

}  // namespace ultrascale::mixed_precision
