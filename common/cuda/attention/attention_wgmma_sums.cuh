// Kernels that run before attention_wgmma_backward.cu (they compute a few numbers for each query)
// and after it (they compute dQ).
//
// dQ = scale dS K is a sum over all keys. Each tile of keys adds its part in memory, in no fixed
// order. To give the same bits in every run, the parts are added as integers: in fixed point, with
// a factor for each query that rules out overflow.
//
//     |dS_ij| = P_ij |dP_ij - delta_i| <= P_ij (|dO_i| |V_j| + |delta_i|),
//
// and the P_ij of a row add up to 1 at most, also over several blocks of keys, so all partial sums
//
//     |sum of dS_ij K_jd| <= (|dO_i| max |V_j| + |delta_i|) max |K_j|  =: bound_i
//
// (|.| of a row is its length; the maxima are over the keys of a head, in all blocks so far).
//
// The factor is the power of two that brings bound_i below 2^30; one bit remains for the increase
// of P and dS by rounding. The cost in precision: each tile's part is rounded to bound_i / 2^30,
// and the bound is far above a typical dQ. For random numbers and 8192 keys it is about 2^13 times
// as large, which leaves dQ 17 bits; the result, in bf16, has 8. Integers have no infinity and no
// NaN. So a row of dQ becomes NaN if its bound (which depends on all of the head's K and V) or its
// log-sum-exp is infinite or NaN.
#pragma once

#include "attention_wgmma.cuh"

namespace ultrascale::ops {

// The sums are tiles of 64 queries x 64 columns, in the layout in which wgmma holds them in
// registers: each warp's 4 KiB are contiguous, and within them each column tile j, and within that
// each lane's four elements (mma.cuh: C).
constexpr int dq_tile = 64 * 64, dq_of_warp = dq_tile / 4;

constexpr int backward_queries(int D) { return D == 64 ? 128 : 64; }  // per tile
constexpr int backward_keys = 128;

// The number that each tile of keys adds to a sum besides its part of dQ: the bits of the float 1.5
// 2^23, which quick_round leaves in it. Subtracting them at every step would take 32 of a step's
// roughly 430 instructions; instead to_dq subtracts them once, as often as tiles have added them
// (modulo 2^32).
constexpr int rounded_zero = 0x4b400000;

// The data that the backward kernel needs for a tile of queries besides Q and dO. TMA loads it with
// them, so its size must be a multiple of 16 bytes. log2_sum and delta are ordered by row_index.
template <int D>
struct alignas(16) BackwardRows {
    static constexpr int queries = backward_queries(D);
    float log2_sum[queries], delta[queries], factor[queries];
    int begin[queries];  // for each query: the first key of its document
    // key_end: the end of the keys that the first query sees, without the prefix. If causal, each
    // further query sees one more key, up to Tk.
    int highest_begin, key_end;
    int tiles_added;  // how many tiles of keys have added to the sums, with rounded_zero
};
// S^T has queries as columns; a thread holds columns 8 j + 2 t and the next one (mma.cuh, t = lane
// % 4). Here those of two neighbouring j are adjacent, so one access at 16 (j / 2) + 4 t loads four
// numbers.
__host__ __device__ constexpr int row_index(int column) {
    return column / 16 * 16 + column % 8 / 2 * 4 + column / 8 % 2 * 2 + column % 2;
}

// Defined in attention_wgmma_sums.cu. An OpenDq (ops_attention.h) has for each tile of queries (B,
// H, tiles) its BackwardRows, its sums, int32 (queries / 64, D / 64, dq_tile), and the lengths |dO|
// of its queries; and longest (2, B, K): the length of the longest row of K and of V in the blocks
// so far. If a block has longer rows, because of which a query needs a smaller factor, it first
// divides its sums by a power of two.
//
// Prepares a block of sequence b, of queries from `first` on.
void next_block(const OpenDq& open, int64_t b, int64_t first, const Tensor& k, const Tensor& v,
                const AttentionSizes& s, const DeviceMask& mask);
// Begins with a block of all queries, which is the only block.
OpenDq open_with_block(const Tensor& dout, const Tensor& lse, const Tensor& delta, const Tensor& k,
                       const Tensor& v, const AttentionSizes& s, const DeviceMask& mask);

template <int D>
struct OpenTiles {
    BackwardRows<D>* rows;
    int* sums;
    float* lengths;
    int head_stride;  // from one head's first tile to the next one's
    OpenTiles(const OpenDq& open, int64_t b, int64_t first, int64_t H)
        : head_stride(int(open.sums.size(0) / (open.longest.size(1) * H))) {
        constexpr int queries = backward_queries(D);
        const int64_t tile = b * H * head_stride + first / queries;
        rows = reinterpret_cast<BackwardRows<D>*>(open.rows.data()) + tile;
        sums = open.sums.as<int32_t>() + tile * queries * D;
        lengths = open.lengths.as<float>() + tile * queries;
    }
};

// Stores neighbouring numbers, plus those at `addend` if it is not null. Addresses are multiples of
// 16 bytes in fp32, of 2 n in bf16.
template <int n, class Out>
__device__ void store_sums(Out* to, float (&sum)[n], const float* addend) {
    if (addend) {
        float more[n];
        load_floats(more, addend);
#pragma unroll
        for (int j = 0; j < n; ++j) sum[j] += more[j];
    }
    if constexpr (std::is_same_v<Out, float>) {
        store_floats(to, sum);
    } else {
        Pack<Out, n> pack;
#pragma unroll
        for (int j = 0; j < n; ++j) pack.x[j] = from_float<Out>(sum[j]);
        store(to, pack);
    }
}

// The first tile of queries that sees a tile of keys, which begins at key `first`.
__device__ inline int first_query_tile(int first, int queries, const DeviceMask& mask) {
    return int(min(mask.first_query(first), mask.Tq)) / queries;
}
// The number of tiles of keys that a tile of queries of sequence b sees, i.e. among whose
// QueryTiles it is.
__device__ inline int key_tiles_of(int64_t b, int tile, int queries, const DeviceMask& mask) {
    int64_t begin = 0, end = (mask.Tk + backward_keys - 1) / backward_keys;
    if (mask.causal && tile < int(mask.Tq) / queries) {
        const int64_t keys = max(int64_t(tile + 1) * queries + mask.shift, int64_t(mask.prefix));
        end = min((keys + backward_keys - 1) / backward_keys, end);
    }
    if (mask.starts) {
        const int64_t first = mask.starts[b * mask.Tq + tile * queries] - mask.k_offset;
        begin = max(first, int64_t(0)) / backward_keys;
    }
    return int(max(end - begin, int64_t(0)));
}

}  // namespace ultrascale::ops
