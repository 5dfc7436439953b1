// Attention in tiles with an online softmax (FlashAttention: Dao et al. 2022,
// https://arxiv.org/abs/2205.14135): the operations, and the choice of their kernels. They use the
// fastest kernels that support the case: Hopper's (attention_wgmma_*.cu), else those for any tensor
// cores (attention_mma_*.cu), else the plain kernels (ops_attention_plain.cu).
#include "attention.cuh"
#include "cuda/ops_common.cuh"

namespace ultrascale::ops {

void attention_forward(Tensor o, Tensor lse, const Tensor& q, const Tensor& k, const Tensor& v,
                       const AttentionMask& mask) {
    const AttentionSizes n = attention_sizes(q, k, v);
    check(o.numel() == q.numel() && lse.numel() == n.B * n.H * n.Tq,
          "attention_forward: o (B, Tq, H, D), lse (B, H, Tq)");
    const AttentionMask in_keys = counted_in_keys(mask);
    const DeviceMask visible = device_mask(in_keys, n);
    OpSpan span("attention_forward", 4.0 * visible_pairs(in_keys, n) * double(n.q_row()),
                bytes_of(o, lse, q, k, v));
    const bool aligned = aligned16({o.data(), q.data(), k.data(), v.data()});
    if (attention_wgmma_supported(q.dtype(), n) && aligned)
        return attention_forward_wgmma(o, lse, q, k, v, n, visible);
    if (attention_mma_supported(q.dtype(), n.D) && aligned)
        return attention_forward_mma(o, lse, q, k, v, n, visible);
    attention_forward_plain(o, lse, q, k, v, n, visible, aligned);
}

namespace {

void run_backward(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout,
                  const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
                  const Tensor& delta, const AttentionSizes& n, const AttentionMask& mask,
                  AttentionAdds add, bool hopper, bool aligned) {
    const DeviceMask visible = device_mask(mask, n);
    OpSpan span("attention_backward", 10.0 * visible_pairs(mask, n) * double(n.q_row()),
                bytes_of(dq, dk, dv, dout, q, k, v, lse, delta) + (add.dq ? bytes_of(add.dq) : 0) +
                    (add.dkv ? bytes_of(dk, dv) : 0));
    if (hopper)
        return attention_backward_wgmma(dq, dk, dv, dout, q, k, v, lse, delta, n, visible, add);
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

}  // namespace

void attention_backward(Tensor dq, Tensor dk, Tensor dv, const Tensor& dout, const Tensor& q,
                        const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta,
                        const AttentionMask& mask, AttentionAdds add) {
    const AttentionSizes n = attention_sizes(q, k, v);
    check(dout.numel() == q.numel(), "attention_backward: dout is (B, Tq, H, D)");
    check_gradients(dq, dk, dv, q, k, add);
    check(lse.numel() == n.B * n.H * n.Tq && delta.numel() == lse.numel(),
          "attention_backward: lse, delta are (B, H, Tq)");
    const AttentionMask in_keys = counted_in_keys(mask);
    const bool aligned = aligned16({dq.data(), add.dq.data(), dk.data(), dv.data(), dout.data(),
                                    q.data(), k.data(), v.data()});
    if (attention_wgmma_supported(q.dtype(), n) && aligned)
        return run_backward(dq, dk, dv, dout, q, k, v, lse, delta, n, in_keys, add, true, aligned);
    // The other kernels overwrite gradients of q's dtype.
    const auto written = [&](const Tensor& to, bool adds) {
        return to.dtype() == q.dtype() && !adds
                   ? to
                   : Tensor::empty(to.shape(), q.dtype(), Memory::workspace);
    };
    const auto finish = [](const Tensor& to, const Tensor& from, const Tensor& addend) {
        if (addend)
            ops::add(to, addend, from);
        else if (to.data() != from.data())
            ops::copy(to, from);
    };
    const Tensor own_dq = written(dq, bool(add.dq)), own_dk = written(dk, add.dkv),
                 own_dv = written(dv, add.dkv);
    run_backward(own_dq, own_dk, own_dv, dout, q, k, v, lse, delta, n, in_keys, {}, false, aligned);
    finish(dq, own_dq, add.dq);
    finish(dk, own_dk, add.dkv ? dk : Tensor()), finish(dv, own_dv, add.dkv ? dv : Tensor());
}

}  // namespace ultrascale::ops
