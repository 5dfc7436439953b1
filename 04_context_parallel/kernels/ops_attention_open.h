// The gradients of attention block by block, with a sum that kernels keep in a form of their own.
// The conventions of core/ops.h hold.
#pragma once

#include "core/ops_attention.h"

namespace ultrascale::ops {

// attention_backward block by block, with dQ held open in between, so that it is converted only
// once. open_dq begins with zero, for queries (B, T, H, D) and keys with K heads; dout, lse and
// delta are those of the whole rows. It returns an empty one if the kernels for q's dtype and D
// have no such form; then attention_backward of core/ops.h can add in fp32.
OpenDq open_dq(const Tensor& dout, const Tensor& lse, const Tensor& delta, int64_t K);
// A block of sequence b: dout and q (1, queries, H, D) from query `first` on, k and v (1, Tk, K,
// D). dk and dv are fp32, or of q's dtype; `add_dkv`: they are fp32 and added to.
void attention_backward(const OpenDq& open, int64_t b, int64_t first, Tensor dk, Tensor dv,
                        const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                        const AttentionMask& mask, bool add_dkv);
// dq (B, T, H, D), fp32 or 16 bits, becomes the sum, plus `addend` (fp32) if there is one.
void close_dq(Tensor dq, const OpenDq& open, const Tensor& addend = {});

}  // namespace ultrascale::ops
