// Attention in tiles with an online softmax (FlashAttention: Dao et al. 2022,
// https://arxiv.org/abs/2205.14135): the operations, and the choice of their kernels. They use the
// fastest kernels that support the case: Hopper's (attention_wgmma_*.cu), else those for any tensor
// cores (attention_mma_*.cu), else the plain ones (ops_attention_plain.cu).
#include "attention.cuh"
#include "cuda/ops_common.cuh"

namespace ultrascale::ops {

void attention_forward(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionMask& mask) {
    const AttentionSizes n = attention_sizes(q, k, v);
    check(o.numel() == q.numel() && lse.numel() == n.B * n.H * n.Tq,
          "attention_forward: o (B, Tq, H, D), lse (B, H, Tq)");
    const DeviceMask visible = device_mask(mask, n);
    OpSpan span("attention_forward", 4.0 * visible_pairs(mask, n) * double(n.q_row()),
                bytes_of(o, lse, q, k, v));
    const bool aligned = aligned16({o.data(), q.data(), k.data(), v.data()});
    if (attention_wgmma_supported(q.dtype(), n) && aligned)
        return attention_forward_wgmma(o, lse, q, k, v, n, visible);
    if (attention_mma_supported(q.dtype(), n.D) && aligned)
        return attention_forward_mma(o, lse, q, k, v, n, visible);
    attention_forward_plain(o, lse, q, k, v, n, visible, aligned);
}

void attention_backward(Tensor dq, Tensor dk, Tensor dv, const Tensor& dout, const Tensor& q,
                        const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta,
                        const AttentionMask& mask) {
    const AttentionSizes n = attention_sizes(q, k, v);
    check(dout.numel() == q.numel() && dq.numel() == q.numel(),
          "attention_backward: dout, dq are (B, Tq, H, D)");
    check(dk.numel() == k.numel() && dv.numel() == k.numel(),
          "attention_backward: dk, dv are (B, Tk, K, D)");
    check(lse.numel() == n.B * n.H * n.Tq && delta.numel() == lse.numel(),
          "attention_backward: lse, delta are (B, H, Tq)");
    const DeviceMask visible = device_mask(mask, n);
    OpSpan span("attention_backward", 10.0 * visible_pairs(mask, n) * double(n.q_row()),
                bytes_of(dq, dk, dv, dout, q, k, v, lse, delta));
    const bool aligned =
        aligned16({dq.data(), dk.data(), dv.data(), dout.data(), q.data(), k.data(), v.data()});
    if (attention_wgmma_supported(q.dtype(), n) && aligned)
        return attention_backward_wgmma(dq, dk, dv, dout, q, k, v, lse, delta, n, visible);
    if (attention_mma_supported(q.dtype(), n.D) && aligned) {
        using Half = __nv_bfloat16;
        const AttentionBackwardInputs in = {data<Half>(dout), data<Half>(q),    data<Half>(k),
                                            data<Half>(v),    data<float>(lse), data<float>(delta)};
        attention_backward_keys_mma(data<Half>(dk), data<Half>(dv), in, n, visible);
        attention_backward_queries_mma(data<Half>(dq), in, n, visible);
        return;
    }
    attention_backward_plain(dq, dk, dv, dout, q, k, v, lse, delta, n, visible, aligned);
}

}  // namespace ultrascale::ops
