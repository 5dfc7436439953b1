// What goes before attention_wgmma_backward.cu, a row of numbers for each query, and what comes
// after it: dQ.
//
// dQ = scale dS K is a sum over all keys, and each tile of keys adds its part in memory, whenever
// it comes to it. So that every run has the same bits, what is added are integers: in fixed point,
// with a factor for each query that no sum overflows.
//
//     |dS_ij| = P_ij |dP_ij - delta_i| <= P_ij (|dO_i| |V_j| + |delta_i|),
//
// and the P_ij of a row add up to 1 at most, so all partial sums
//
//     |sum of dS_ij K_jd| <= (|dO_i| max |V_j| + |delta_i|) max |K_j|  =: bound_i
//
// (lengths of rows; maxima over the keys of a head).
//
// The factor is the power of two that brings bound_i below 2^30: one bit remains for what P and dS
// gained when they were rounded. What is lost: each tile's part is rounded to bound_i / 2^30, and
// the bound is far above a usual dQ. Of random numbers over 8192 keys it is some 2^13 times as
// large, which leaves dQ 17 bits; the result has bf16's 8. Integers know no infinity and no NaN: a
// row becomes NaN that has them in its bound (if they are in K or V, so have all rows of these
// heads) or in its log-sum-exp.
#pragma once

#include "attention_wgmma.cuh"

namespace ultrascale::ops {

// The sums: tiles of 64 queries x 64 columns as wgmma has them in registers. Warp w's 4 KiB lie
// together, in them column tile j's, in them each lane's four (mma.cuh says whose they are).
constexpr int dq_tile = 64 * 64, dq_of_warp = dq_tile / 4;

constexpr int backward_queries(int D) { return D == 64 ? 128 : 64; }  // of a tile
constexpr int backward_keys = 128;

// Of a tile of queries, what the backward kernel needs beside Q and dO; TMA brings it with them,
// and wants a multiple of 16 bytes. log2_sum and delta are where row_place says.
template <int D>
struct alignas(16) BackwardRows {
    static constexpr int queries = backward_queries(D);
    float log2_sum[queries], delta[queries], factor[queries];
    int begin[queries];          // of the documents, as keys
    // key_end: where the keys that the first query sees end; behind it one more for each query, if
    // causal, up to Tk
    int highest_begin, key_end;
};
// S^T has queries as columns, of which a thread holds 8 j + 2 t and the next one (mma.cuh, t = lane
// % 4). Those of two neighbouring j lie side by side here: four numbers in one access, at 16 (j /
// 2) + 4 t.
__host__ __device__ constexpr int row_place(int column) {
    return column / 16 * 16 + column % 8 / 2 * 4 + column / 8 % 2 * 2 + column % 2;
}

// attention_wgmma_sums.cu. Of each tile of queries (B, H, tiles) its BackwardRows, and its sums at
// zero: int32 (queries / 64, D / 64, dq_tile).
struct BackwardSums {
    Tensor rows, sums;
};
BackwardSums backward_sums(const Tensor& dout, const Tensor& k, const Tensor& v, const Tensor& lse,
                           const Tensor& delta, const AttentionSizes& s, const DeviceMask& mask);
// dQ, times scale.
void dq_from_sums(const Tensor& dq, const BackwardSums& sums, const AttentionSizes& s);

// A tile of keys is the work of one block, and of all query heads that share them. Where there are
// few tiles for the multiprocessors (few heads, as with tensor parallelism), its queries are dealt
// out to several blocks: pieces, whose dK and dV are added up, in order.
struct Pieces {
    int count;
    // (2, count, B, Tk, K, D): dV and dK as each piece has them, without scale; null where there is
    // one piece
    float* sums;
};
int piece_count(const AttentionSizes& s, const DeviceMask& mask);
void add_pieces(const Tensor& dk, const Tensor& dv, const Tensor& sums, const AttentionSizes& s);

}  // namespace ultrascale::ops
