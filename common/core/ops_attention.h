// What both backends' attention shares: which arguments go together, and positions as numbers of
// keys. Private to common/cpu and common/cuda.
#pragma once

#include "ops.h"

namespace ultrascale::ops {

// a / b rounded down, for b > 0 and any a. (C++ rounds towards zero, so that a query less than a
// stride before key 0 would see that key.) a / b rounded up is -divide_down(-a, b).
constexpr int64_t divide_down(int64_t a, int64_t b) { return a / b - (a % b < 0); }

// With `causal`, query i sees the keys up to i + shift.
inline int64_t shift_in_keys(const AttentionMask& mask) {
    check(mask.stride >= 1, "attention: the mask's stride is at least 1");
    return divide_down(mask.q_offset - mask.k_offset, mask.stride);
}

inline void check_key_gradients(const Tensor& dk, const Tensor& dv, const Tensor& q,
                                const Tensor& k, bool add) {
    check(dk.numel() == k.numel() && dv.numel() == k.numel(),
          "attention_backward: dk, dv are (B, Tk, K, D)");
    check(dk.dtype() == dv.dtype(), "attention_backward: dk and dv are of one dtype");
    check(dk.dtype() == DType::fp32 || dk.dtype() == q.dtype(),
          "attention_backward: dk and dv are of q's dtype or fp32");
    check(!add || dk.dtype() == DType::fp32,
          "attention_backward: dk and dv that are added to are fp32");
}
inline void check_gradients(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& q,
                            const Tensor& k, AttentionAdds add) {
    check_key_gradients(dk, dv, q, k, add.dkv);
    check(dq.numel() == q.numel(), "attention_backward: dq is (B, Tq, H, D)");
    check(dq.dtype() == DType::fp32 || dq.dtype() == q.dtype(),
          "attention_backward: dq is of q's dtype or fp32");
    check(!add.dq || (add.dq.dtype() == DType::fp32 && add.dq.numel() == dq.numel()),
          "attention_backward: what is added to dq is fp32 (B, Tq, H, D)");
}

struct MergeSizes {
    int64_t B, T, Tb, H, D;
};
inline MergeSizes merge_sizes(const Tensor& o, const Tensor& lse, const Tensor& o_block,
                              const Tensor& lse_block, int64_t first) {
    check(o.shape().size() == 4 && o_block.shape().size() == 4,
          "attention_merge: o is (B, T, H, D), o_block (B, Tb, H, D)");
    const MergeSizes n = {o.size(0), o.size(1), o_block.size(1), o.size(2), o.size(3)};
    check(o_block.shape() == Shape({n.B, n.Tb, n.H, n.D}),
          "attention_merge: o_block is (B, Tb, H, D)");
    check(lse.numel() == n.B * n.H * n.T && lse_block.numel() == n.B * n.H * n.Tb,
          "attention_merge: lse is (B, H, T), lse_block (B, H, Tb)");
    check(first >= 0 && first + n.Tb <= n.T,
          "attention_merge: the block's queries are rows first .. first + Tb - 1 of o");
    return n;
}

}  // namespace ultrascale::ops
