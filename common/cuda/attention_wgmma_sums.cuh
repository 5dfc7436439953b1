// dQ = scale dS K is a sum over all keys, and in attention_wgmma_backward.cu each tile of keys adds its part in memory, whenever it comes
// to it. So that every run has the same bits, what is added are integers: in fixed point, with a factor for each query that no sum
// overflows.
//
//     |dS_ij| = P_ij |dP_ij - delta_i| <= P_ij (|dO_i| |V_j| + |delta_i|),   and the P_ij of a row add up to 1 at most, so all partial sums
//     |sum of dS_ij K_jd| <= (|dO_i| max |V_j| + |delta_i|) max |K_j|  =: bound_i      (lengths of rows; maxima over the keys of a head)
//
// The factor is the power of two that brings bound_i below 2^30: one bit remains for what P and dS gained when they were rounded. What is
// lost: each tile's part is rounded to bound_i / 2^30, and the bound is far above a usual dQ. Of random numbers over 8192 keys it is some
// 2^13 times as large, which leaves dQ 17 bits; the result has bf16's 8. Integers know no infinity and no NaN: a row becomes NaN that has
// them in its bound (if they are in K or V, so have all rows of these heads) or in its log-sum-exp.
#pragma once

#include "attention_wgmma.cuh"

namespace ultrascale::ops {

// The sums: tiles of 64 queries x 64 columns as wgmma has them in registers. Warp w's 4 KiB lie together, in them column tile j's, in them
// each lane's four (mma.cuh says whose they are).
constexpr int dq_tile = 64 * 64, dq_of_warp = dq_tile / 4;

struct DqSums {
    int* sums;             // (B, H, tiles of 64 queries, D / 64, 64 * 64)
    const float* factors;  // (B, H, Tq)
    int tiles;             // of 64 queries, a multiple of two
    __device__ int* tile(int64_t head, int query, int part, int parts) const {
        return sums + ((head * tiles + query / 64) * parts + part) * dq_tile;
    }
};

// attention_wgmma_sums.cu: the factors, and dQ, times scale, from the sums.
Tensor dq_factors(const Tensor& dout, const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta, const AttentionSizes& s);
void dq_result(const Tensor& dq, const DqSums& sums, const AttentionSizes& s);

}  // namespace ultrascale::ops
