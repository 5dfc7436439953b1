// Attention as a layer has it, with its projections: y = residual + o_proj(attention(q, k, v)). How
// q, k and v are made of x distinguishes a Llama's (below) from latent attention (latent.h).
#pragma once

#include "parts.h"

namespace ultrascale {

struct ModuleFactories;
struct ModulePath;

// The part of a layer after the first norm. x, the residual, dy and the results: (B, T, h), or the
// technique's own layout of the residual stream. `saved` is the layer's, and is shared with its
// other parts.
class SelfAttention {
public:
    virtual ~SelfAttention() = default;
    // x is freed as early as possible.
    virtual Tensor forward(Tensor x, const Tensor& residual, Saved& saved, Context& context) = 0;
    virtual Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                            WeightGradient when) = 0;
    virtual void backward_weight(Saved& saved, Context& context) = 0;
};

// q, k, v = rope(qkv_proj(x)) with H heads of q and K of k and v (Qwen 3: rope(norm(q, k))).
class GroupedQueryAttention : public SelfAttention {
public:
    GroupedQueryAttention(ParameterList& list, const LlamaConfig& config,
                          const ModuleFactories& factories, const ModulePath& path);
    Tensor forward(Tensor x, const Tensor& residual, Saved& saved, Context& context) override;
    Tensor backward(const Tensor& dy, Saved& saved, Context& context, WeightGradient when) override;
    void backward_weight(Saved& saved, Context& context) override;

private:
    int64_t heads_, kv_heads_, head_dim_;
    Tensor frequencies_;  // (D / 2)
    std::unique_ptr<Linear> qkv_proj_, o_proj_;
    std::unique_ptr<HeadNorms> head_norms_;  // or none
    std::unique_ptr<AttentionCore> attention_;
};

}  // namespace ultrascale
