// Activations kept for backward in 8 bits (--keep-fp8): gate and up, which are most of a layer's
// activations, and the linears' inputs. Every 128 features of a token have a scale (5_tiles.h), so
// an outlier costs only these their bits. With `deepseek` the README's run takes 4.81 instead of
// 6.20 MiB of activations.
//
//     kept of a layer, bytes a token      bf16              --keep-fp8
//     two norms' inputs                   4 h               4 h            the residual stream
//     inputs of q,k,v and of gate,up      4 h               see below
//     q, k, v                             2 H D + 4 K D     the same
//     o                                   2 H D             1.5 H D + scales   (recipe deepseek)
//     gate, up                            4 F               2 F  + scales
//
// The inputs of q,k,v and of gate,up take 2 h + scales in 8 bits (6_fp8_linear.h). If the norm
// before them rounds them (7_fused_quantisation.h), they do so without --keep-fp8, too, and with
// scales of rows and tiles they are not kept at all.
//
// Backward reads o twice: in attention, and as o_proj's input for dW. An error in attention's
// output also reaches the gradients of its queries and keys. So DeepSeek-V3 keeps it with 6 bits of
// mantissa: e5m6, 12 bits, with scales that are powers of two, so that rounding it to e4m3
// afterwards is the only rounding that matters. Both parts hold the same packed tensor. Forward
// multiplies o before it is packed.
//
// DeepSeek-V3 Technical Report, section 3.3.3 (arXiv 2412.19437).
#pragma once

#include <memory>

#include "6_fp8_linear.h"
#include "fp8_parts.h"
#include "kernels/ops_quantised.h"
#include "model/activation.h"
#include "model/llama.h"

namespace ultrascale::mixed_precision {

// Whether o is kept in 12 bits: they come in tiles of 128.
inline bool keeps_e5m6(const LlamaConfig& c, const PrecisionOptions& o) {
    return o.keep_fp8 && o.recipe.products == Products::tile && c.q_size() % ops::scale_block == 0;
}

class AttentionKeptInE5m6 : public AttentionCore {
public:
    explicit AttentionKeptInE5m6(std::unique_ptr<AttentionCore> inner) : inner_(std::move(inner)) {}

    void feeds(Fp8Linear& o_proj) {
        o_proj_ = &o_proj;
        o_proj.restore = [dtype = o_proj.activations()](const Tensor& packed,
                                                        const Tensor& scales) {
            return unpacked({packed.rows(), packed.cols() / 3 * 8}, dtype, packed, scales);
        };
    }
    Tensor forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                   Context& context) override {
        Tensor o = inner_->forward(q, k, v, saved, context);  // (B, T, H, D)
        if (!saved.enabled()) return o;
        const int64_t C = o.size(2) * o.size(3), N = o.numel() / C;
        const Tensor packed = activation({N, 3 * C / 8}, DType::int32),
                     scales = activation({C / ops::scale_block, N}, DType::fp32);
        ops::pack_e5m6(packed, scales, o.view({N, C}));
        if (saved.has("o")) {  // not in naive attention
            saved.drop("o");
            saved.keep("packed_o", packed), saved.keep("packed_o_scales", scales);
        }
        o_proj_->prepare({{}, packed, scales});
        return o;
    }
    Gradients backward(const Tensor& dout, Saved& saved, Context& context) override {
        if (saved.has("packed_o"))
            saved.keep("o", unpacked(dout.shape(), dout.dtype(), saved.take("packed_o"),
                                     saved.take("packed_o_scales")));
        return inner_->backward(dout, saved, context);
    }

private:
    static Tensor unpacked(const Shape& shape, DType dtype, const Tensor& packed,
                           const Tensor& scales) {
        Tensor o = Tensor::empty(shape, dtype, Memory::workspace);
        const int64_t C = packed.cols() / 3 * 8;
        ops::unpack_e5m6(o.view({packed.rows(), C}), packed, scales);
        return o;
    }
    std::unique_ptr<AttentionCore> inner_;
    Fp8Linear* o_proj_ = nullptr;  // of the same layer
};

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

// Makes a model's parts keep their activations as --keep-fp8 asks.
inline void keep_in_fp8(ModuleFactories& factories, const LlamaConfig& config,
                        const PrecisionOptions& options, Fp8Linears& linears) {
    if (!options.keep_fp8) return;
    factories.feed_forward = [plain = factories.feed_forward](ParameterList& list,
                                                              const ModuleFactories& all,
                                                              const ModulePath& layer) {
        return std::make_unique<FeedForwardKeptInFp8>(plain(list, all, layer));
    };
    if (!keeps_e5m6(config, options)) return;
    factories.attention = [&linears, plain = factories.attention](const ModulePath& path) {
        auto attention = std::make_unique<AttentionKeptInE5m6>(plain(path));
        linears.when_built(
            path.part("o_proj").name,
            [attention = attention.get()](Fp8Linear& o_proj) { attention->feeds(o_proj); });
        return attention;
    };
}

}  // namespace ultrascale::mixed_precision
