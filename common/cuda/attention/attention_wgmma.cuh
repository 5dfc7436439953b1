// Shared by Hopper's attention kernels (attention_wgmma_*.cu): how TMA reads a head, the order in
// which tiles are processed, and the online softmax on a warpgroup's scores.
#pragma once

#include <algorithm>
#include <bit>

#include "attention.cuh"
#include "cuda/hopper.cuh"
#include "cuda/ops_common.cuh"

namespace ultrascale::ops {

// ---- heads in shared memory ---------------------------------------------------------------------

// Maps (B, T, heads, D) as (B, heads * parts of a row, T, part), where a part has 128 bytes: 64
// bf16 or 32 fp32. A box is `rows` rows of 64 columns, or in bf16 of a whole head, one part after
// the other.
template <int D, class T = Element>
inline CUtensorMap head_map(const Tensor& x, int rows) {
    constexpr int part_bytes = 128, in_part = part_bytes / int(sizeof(T));
    const int64_t B = x.size(0), tokens = x.size(1), row_bytes = x.size(2) * D * int64_t(sizeof(T));
    return tensor_map(x.data(), {{in_part, sizeof(T), in_part},
                                 {tokens, row_bytes, rows},
                                 {row_bytes / part_bytes, part_bytes,
                                  sizeof(T) == sizeof(Element) ? D / in_part : 64 / in_part},
                                 {B, tokens * row_bytes, 1}});
}

// Stores a warp's 16 rows as bf16 to rows first_row .. first_row + 15 of a tile (parts, rows, 64),
// multiplied by one factor for this thread's row g and another for row g + 8 (mma.cuh).
template <int D, int tile_rows>
__device__ void store_fragments(Element* tile, int first_row, const float (&rows)[D / 8][4],
                                float low, float high) {
    const int row = first_row + int(threadIdx.x) % 16, chunk = int(threadIdx.x) % 32 / 16;
#pragma unroll
    for (int j = 0; j < D / 8; j += 2)
        stmatrix(tile_chunk<64>(tile + j / 8 * tile_rows * 64, row, j % 8 + chunk),
                 pack(rows[j][0] * low, rows[j][1] * low),
                 pack(rows[j][2] * high, rows[j][3] * high),
                 pack(rows[j + 1][0] * low, rows[j + 1][1] * low),
                 pack(rows[j + 1][2] * high, rows[j + 1][3] * high));
}

// ---- scheduling of tiles ------------------------------------------------------------------------

// The order in which tiles are processed. Tiles of a few heads are processed at a time, so that the
// other side (the keys, for tiles of queries) fits into L2; among these heads, the longest tiles of
// all heads come first. Neighbouring heads share keys (grouped-query attention).
struct Tile {
    int b, h, rank;  // sequence, head; rank 0: the longest of the head
};
struct TileOrder {
    // heads of all sequences, heads worked on at once, tiles per head, heads per sequence
    int heads, at_once, tiles, heads_of_sequence;
    __host__ __device__ int count() const { return heads * tiles; }
    __device__ Tile at(int index) const {
        const int section = index / (at_once * tiles), in_section = index % (at_once * tiles);
        const int here = min(at_once, heads - section * at_once),
                  head = section * at_once + in_section % here;
        return {head / heads_of_sequence, head % heads_of_sequence, in_section / here};
    }
};
constexpr int64_t bytes_in_l2 = 32 << 20;
inline TileOrder tile_order(int64_t B, int64_t heads, int64_t tiles, int64_t bytes_of_other_side) {
    const uint64_t at_once = std::clamp<uint64_t>(
        bytes_in_l2 / std::max<int64_t>(bytes_of_other_side, 1), 1, uint64_t(B * heads));
    return {int(B * heads), int(std::bit_floor(at_once)), int(tiles), int(heads)};
}
// How many tiles were taken beyond each block's first one. The last block to take one resets it for
// the next launch (on the same stream).
static __device__ int tiles_taken = 0;
__device__ inline int take_tile(int count) {
    const int taken = atomicAdd(&tiles_taken, 1);
    if (taken == count - 1)
        atomicExch(&tiles_taken, 0);  // every block makes one attempt too many: `count` in all
    return int(gridDim.x) + taken;
}

// The tiles of keys that any of the queries first .. first + queries - 1 sees; they begin at keys
// begin, begin + keys, ...
struct KeyTiles {
    int begin, count;
    BlockRange range;
};
template <int queries, int keys>
__device__ KeyTiles key_tiles(const DeviceMask& mask, int b, int first) {
    const BlockRange range = mask.template block_range<queries>(b, first);
    const int begin = range.lowest_begin / keys * keys;
    return {
        begin,
        range.highest_end > range.lowest_begin ? (range.highest_end - begin + keys - 1) / keys : 0,
        range};
}

// ---- softmax ------------------------------------------------------------------------------------

inline constexpr float rescale_above =
    8;  // use a new maximum only if exponentials would exceed 2^8, so that O is rarely rescaled
inline constexpr float ln_2 = 0.693147181f;

// Masks all columns of row g (r = 0) or g + 8 (r = 1) of the scores except begin .. end - 1.
template <int tiles>
__device__ void hide_keys(float (&score)[tiles][4], int r, int begin, int end) {
    const int first = int(threadIdx.x) % 4 * 2;  // this thread's first column
    begin -= first, end -= first;
#pragma unroll
    for (int j = 0; j < tiles; ++j)
#pragma unroll
        for (int e = 0; e < 2; ++e)
            if (8 * j + e < begin || 8 * j + e >= end) score[j][2 * r + e] = -INFINITY;
}

// A thread's part of the softmax of 64 queries: rows g and g + 8 of its warp's 16 (mma.cuh).
// Exponents are base 2.
struct Softmax {
    float factor;  // exp(scale x) = 2^(factor x)
    float highest[2] = {-INFINITY,
                        -INFINITY};  // subtracted from the exponents: about the highest one so far
    // sum: over this thread's keys; rescale: the factor for the sums before the last tile.
    float sum[2] = {}, rescale[2];

    // Turns S into P.
    template <int tiles>
    __device__ void operator()(float (&score)[tiles][4]) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float top = -INFINITY;
#pragma unroll
            for (int j = 0; j < tiles; ++j)
                top = fmaxf(top, fmaxf(score[j][2 * r], score[j][2 * r + 1]));
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));  // four lanes share a row
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
            top = fmaxf(highest[r], top * factor);
            if (top - highest[r] <= rescale_above) top = highest[r];
            const float shift = top == -INFINITY ? 0 : top;  // no visible key so far
            rescale[r] = exp2_fast(highest[r] - shift);
            highest[r] = top;
            float added = 0;
#pragma unroll
            for (int j = 0; j < tiles; ++j) {
                score[j][2 * r] = exp2_fast(score[j][2 * r] * factor - shift);
                score[j][2 * r + 1] = exp2_fast(score[j][2 * r + 1] * factor - shift);
                added += score[j][2 * r] + score[j][2 * r + 1];
            }
            sum[r] = sum[r] * rescale[r] + added;
        }
    }
    template <int tiles>
    __device__ void rescale_output(float (&out)[tiles][4]) const {
        if (__all_sync(0xffffffffu, rescale[0] == 1 && rescale[1] == 1)) return;
#pragma unroll
        for (int j = 0; j < tiles; ++j)
#pragma unroll
            for (int e = 0; e < 4; ++e) out[j][e] *= rescale[e / 2];
    }
    // Call it after the last keys; then sum[r] is the sum of the whole row. A row without keys has
    // 0.
    __device__ void finish() {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
            sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
        }
    }
    __device__ float log_sum(int r) const {
        return sum[r] > 0 ? (highest[r] + log2f(sum[r])) * ln_2 : -INFINITY;
    }
};

}  // namespace ultrascale::ops
