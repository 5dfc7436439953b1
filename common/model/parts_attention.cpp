// The attention cores. q, o and their gradients are (B, T, H, D); k, v and theirs are (B, T, K, D).
#include "activation.h"
#include "core/trace.h"
#include "parts.h"

namespace ultrascale {

Tensor FlashAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                               Context& context) {
    Tensor o = activation_like(q);                                            // (B, T, H, D)
    Tensor lse = activation({q.size(0), q.size(2), q.size(1)}, DType::fp32);  // (B, H, T)
    ops::attention_forward(o, lse, q, k, v, context.batch.mask());
    saved.keep("q", q);
    saved.keep("k", k);
    saved.keep("v", v);
    saved.keep("o", o);
    saved.keep("lse", lse);
    return o;
}

AttentionCore::Gradients FlashAttention::backward(const Tensor& dout, Saved& saved,
                                                  Context& context) {
    // exercise 00.2 begin: delta = rowsum(dout o), then dq, dk, dv from the log-sum-exp
    Tensor q = saved.take("q"), k = saved.take("k"), v = saved.take("v");
    Tensor lse = saved.take("lse");                       // (B, H, T)
    Tensor delta = activation(lse.shape(), DType::fp32);  // (B, H, T)
    ops::attention_delta(delta, dout, saved.take("o"));
    Gradients grads{activation_like(q), activation_like(k), activation_like(v)};
    ops::attention_backward(grads.dq, grads.dk, grads.dv, dout, q, k, v, lse, delta,
                            context.batch.mask());
    return grads;
    // exercise 00.2 end
}

namespace {

// Returns o and the probabilities (B, H, Tq, Tk).
std::pair<Tensor, Tensor> naive_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                          const Context& context) {
    const int64_t B = q.size(0), H = q.size(2), Tq = q.size(1), Tk = k.size(1);
    Tensor o = activation_like(q);                     // (B, Tq, H, D)
    Tensor p = activation({B, H, Tq, Tk}, q.dtype());  // (B, H, Tq, Tk)
    ops::attention_naive_forward(o, p, q, k, v, context.batch.mask());
    return {o, p};
}

}  // namespace

Tensor NaiveAttention::forward(const Tensor& q, const Tensor& k, const Tensor& v, Saved& saved,
                               Context& context) {
    auto [o, probabilities] = naive_attention(q, k, v, context);
    saved.keep("q", q);
    saved.keep("k", k);
    saved.keep("v", v);
    if (!recompute_) saved.keep("probabilities", probabilities);
    return o;
}

AttentionCore::Gradients NaiveAttention::backward(const Tensor& dout, Saved& saved,
                                                  Context& context) {
    Tensor q = saved.take("q"), k = saved.take("k"), v = saved.take("v");
    Tensor probabilities;  // (B, H, Tq, Tk)
    if (recompute_) {
        const TraceName again(TraceName::pass, "recomputed forward");
        probabilities = naive_attention(q, k, v, context).second;
    } else {
        probabilities = saved.take("probabilities");
    }
    Gradients grads{activation_like(q), activation_like(k), activation_like(v)};
    ops::attention_naive_backward(grads.dq, grads.dk, grads.dv, dout, q, k, v, probabilities);
    return grads;
}

}  // namespace ultrascale
