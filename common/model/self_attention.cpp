#include "self_attention.h"

#include "activation.h"
#include "core/error.h"
#include "llama.h"

namespace ultrascale {

GroupedQueryAttention::GroupedQueryAttention(ParameterList& list, const LlamaConfig& config,
                                             const ModuleFactories& factories,
                                             const ModulePath& path)
    : heads_(factories.heads), kv_heads_(factories.kv_heads), head_dim_(config.head_dim) {
    const ModuleFactories::LinearShape qkv = {
        {{"q_proj", config.q_size()}, {"k_proj", config.kv_size()}, {"v_proj", config.kv_size()}},
        config.hidden};
    qkv_proj_ = factories.linear(list, factories, path, LinearRole::column, qkv);
    head_norms_ = factories.head_norms(list, path);
    attention_ = factories.attention(path);
    o_proj_ = factories.linear(list, factories, path, LinearRole::row,
                               {{{"o_proj", config.hidden}}, config.q_size()});
    frequencies_ =
        Tensor::from_host<float>(rope_frequencies(config), {head_dim_ / 2}, Memory::workspace);
}

Tensor GroupedQueryAttention::forward(Tensor x, const Tensor& residual, Saved& saved,
                                      Context& context) {
    Tensor qkv = qkv_proj_->forward(x, saved["qkv_proj"], context);  // (B, T, (H + 2K) D)
    x = {};  // `= {}` releases an activation: it is freed here unless `saved` keeps it
    const int64_t B = qkv.size(0), T = qkv.size(1), H = heads_, K = kv_heads_;
    check(B == context.batch.sequences() && T == context.batch.length(),
          "attention: a layer's input must be (B, T, h) with the batch's B and T");
    if (head_norms_) qkv = head_norms_->forward(qkv, H + K, saved["head_norms"], context);
    Tensor q = activation({B, T, H, head_dim_}, qkv.dtype());  // (B, T, H, D)
    Tensor k = activation({B, T, K, head_dim_}, qkv.dtype());  // (B, T, K, D)
    Tensor v = activation({B, T, K, head_dim_}, qkv.dtype());  // (B, T, K, D)
    ops::rope_forward(q, k, v, qkv, context.batch.positions, frequencies_);
    qkv = {};
    Tensor o = attention_->forward(q, k, v, saved["attention"], context);  // (B, T, H, D)
    return o_proj_->forward(o.view({B, T, H * head_dim_}), saved["o_proj"], context, residual);
}

Tensor GroupedQueryAttention::backward(const Tensor& dy, Saved& saved, Context& context,
                                       WeightGradient when) {
    Tensor d_o = o_proj_->backward(dy, saved["o_proj"], context, when);  // (B, T, H D)
    const int64_t B = d_o.size(0), T = d_o.size(1), H = heads_, K = kv_heads_;
    auto [dq, dk, dv] = attention_->backward(d_o.view({B, T, H, head_dim_}), saved["attention"],
                                             context);  // as q, k, v
    d_o = {};
    Tensor dqkv = activation({B, T, (H + 2 * K) * head_dim_}, dq.dtype());  // (B, T, (H + 2K) D)
    ops::rope_backward(dqkv, dq, dk, dv, context.batch.positions, frequencies_);
    dq = {}, dk = {}, dv = {};
    if (head_norms_) head_norms_->backward(dqkv, saved["head_norms"], context);
    return qkv_proj_->backward(dqkv, saved["qkv_proj"], context, when);  // as x
}

void GroupedQueryAttention::backward_weight(Saved& saved, Context& context) {
    o_proj_->backward_weight(saved["o_proj"], context);
    qkv_proj_->backward_weight(saved["qkv_proj"], context);
}

}  // namespace ultrascale
