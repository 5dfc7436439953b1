// Shared by both backends' attention: checks of the arguments, and positions counted in keys.
// Private to common/cpu and common/cuda.
#pragma once

#include "ops.h"

namespace ultrascale::ops {

// a / b rounded down, for b > 0 and any a. (C++ rounds towards zero; then a query less than a
// stride before key 0 would see that key.) a / b rounded up is -divide_down(-a, b).
constexpr int64_t divide_down(int64_t a, int64_t b) { return a / b - (a % b < 0); }

// With `causal`, query i sees the keys up to i + shift.
inline int64_t shift_in_keys(const AttentionMask& mask) {
    check(mask.stride >= 1, "attention: the mask's stride is at least 1");
    return divide_down(mask.q_offset - mask.k_offset, mask.stride);
}
// With `causal`, every query sees these first keys.
inline int64_t prefix_in_keys(const AttentionMask& mask) {
    return std::max<int64_t>(-divide_down(mask.k_offset - mask.prefix, mask.stride), 0);
}

// A dQ that stays open between blocks of keys, in the form in which Hopper's kernels add to it
// (cuda/attention/attention_wgmma_sums.cuh).
struct OpenDq {
    Tensor sums, rows, lengths, longest;
    int64_t T = 0;
    explicit operator bool() const { return bool(sums); }
    // Whether a block may have these queries: whole tiles of the sums, the last of which may be
    // shorter.
    bool takes(int64_t first, int64_t queries) const {
        const int64_t tile = sums.size(1);
        return first % tile == 0 && (queries % tile == 0 || first + queries == T);
    }
};

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

}  // namespace ultrascale::ops
