// Attention over a sequence's keys block by block: the merge of a block's result into that of the
// blocks before. The conventions of core/ops.h hold.
#pragma once

#include "core/ops.h"

namespace ultrascale::ops {

// Merges what the same queries give with another block of keys, o_block (B, Tb, H, D) and lse_block
// (B, H, Tb) fp32, into o (B, T, H, D) and lse (B, H, T) fp32; the block's queries are rows first
// .. first + Tb - 1 of each sequence, and the others stay as they are. With share =
// sigmoid(lse_block - lse), the block's part of the sum of all exponentials so far:
//   o += share * (o_block - o)      lse += softplus(lse_block - lse)
// o and o_block may each be fp32 or 16 bits (o in 16 bits is rounded at every merge). Where lse is
// -infinity, no key has been seen so far: o may be uninitialised there and becomes the block's, or
// zero if lse_block is -infinity, too. Elsewhere an lse_block of -infinity changes nothing.
void attention_merge(Tensor o, Tensor lse, const Tensor& o_block, const Tensor& lse_block,
                     int64_t first = 0);

// What both backends check.
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
