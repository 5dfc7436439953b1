// Hopper's kernels, which add to an open dQ also where there is only one block, do it all.
#include "cuda/attention/attention.cuh"
#include "cuda/ops_common.cuh"
#include "ops_attention_open.h"

namespace ultrascale::ops {

OpenDq open_dq(const Tensor& dout, const Tensor& lse, const Tensor& delta, int64_t K) {
    const AttentionSizes n = attention_sizes(dout, dout, dout);
    check(lse.numel() == n.B * n.H * n.Tq && delta.numel() == lse.numel(),
          "open_dq: lse, delta are (B, H, T)");
    if (!attention_wgmma_supported(dout.dtype(), n) || !aligned16({dout.data()})) return {};
    OpSpan span("open_dq", 0, bytes_of(dout, lse, delta) + 4 * double(dout.numel()));
    return open_dq_wgmma(dout, lse, delta, K);
}
void attention_backward(const OpenDq& open, int64_t b, int64_t first, Tensor dk, Tensor dv,
                        const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionMask& mask, bool add_dkv) {
    const AttentionSizes n = attention_sizes(q, k, v);
    check(dout.numel() == q.numel(), "attention_backward: dout is (1, queries, H, D)");
    check(n.B == 1 && open && open.takes(first, n.Tq) &&
              aligned16({dk.data(), dv.data(), dout.data(), q.data(), k.data(), v.data()}),
          "attention_backward: a block of one sequence that the open dQ takes");
    check_key_gradients(dk, dv, q, k, add_dkv);
    const AttentionMask in_keys = counted_in_keys(mask);
    OpSpan span("attention_backward", 10.0 * visible_pairs(in_keys, n) * double(n.q_row()),
                bytes_of(dk, dv, dout, q, k, v) * (add_dkv ? 2 : 1) + 4 * double(q.numel()));
    attention_backward_wgmma(open, b, first, dk, dv, dout, q, k, v, n, device_mask(in_keys, n),
                             add_dkv);
}
void close_dq(Tensor dq, const OpenDq& open, const Tensor& addend) {
    check(!addend || (addend.dtype() == DType::fp32 && addend.numel() == dq.numel()),
          "close_dq: what is added is fp32 (B, T, H, D)");
    OpSpan span("close_dq", 0, bytes_of(dq, open.sums) + (addend ? bytes_of(addend) : 0));
    close_dq_wgmma(dq, open, addend);
}

}  // namespace ultrascale::ops
