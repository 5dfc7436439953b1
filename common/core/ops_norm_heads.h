// The sizes of norm_heads_forward and _backward, checked the same way on both backends. Private to
// common/cpu and common/cuda.
#pragma once

#include "ops.h"

namespace ultrascale::ops {

struct HeadSizes {
    int64_t N, H, K, all, D;  // all = H + 2 K
};
inline HeadSizes head_sizes(const Tensor& out, const Tensor& rstd, const Tensor& qkv,
                            const Tensor& q_weight, const Tensor& k_weight) {
    HeadSizes s = {.N = qkv.rows(), .D = q_weight.numel()};
    check(s.D > 0 && k_weight.numel() == s.D, "norm_heads: weights are (D)");
    check(qkv.cols() % s.D == 0 && out.numel() == qkv.numel(), "norm_heads: (N, (H + 2K) D)");
    s.all = qkv.cols() / s.D;
    const int64_t normed = rstd.cols();
    check(rstd.dtype() == DType::fp32 && rstd.numel() == s.N * normed,
          "norm_heads: rstd is (N, H + K) fp32");
    s.K = s.all - normed, s.H = normed - s.K;
    check(s.K >= 1 && s.H >= 1, "norm_heads: rstd is (N, H + K) fp32");
    check(out.dtype() == qkv.dtype() && q_weight.dtype() == qkv.dtype() &&
              k_weight.dtype() == qkv.dtype(),
          "norm_heads: one dtype");
    return s;
}
inline void check_weight_gradients(const Tensor& dq_weight, const Tensor& dk_weight,
                                   const HeadSizes& s) {
    check(dq_weight.numel() == s.D && dk_weight.numel() == s.D &&
              dq_weight.dtype() == dk_weight.dtype(),
          "norm_heads_backward: dq_weight and dk_weight are (D), of one dtype");
}

}  // namespace ultrascale::ops
