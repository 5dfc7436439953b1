// Shared by matrix products on wgmma: the order of tiles, and results that leave through the copy
// engine. 07_kernels/6_hopper teaches it step by step.
#pragma once

#include "core/tensor.h"
#include "hopper.cuh"
#include "packs.cuh"

namespace ultrascale {

constexpr int k_step = 64;  // k per tile in shared memory: rows of 128 bytes

// ---- on the host --------------------------------------------------------------------------------

// A bf16 matrix C as TMA writes it, in boxes of a warp's 16 rows x 64 columns: 2 KiB. Rows must be
// a multiple of 16 bytes.
constexpr int box_rows = 16, box_columns = 64;
inline CUtensorMap result_map(const Tensor& C) {
    const int64_t N = C.cols(), size = sizeof(Element);
    return N % 8 == 0
               ? tensor_map(C.data(), {{N, size, box_columns}, {C.rows(), N * size, box_rows}})
               : CUtensorMap{};
}

// fp32 sums, (M, N) or for each of G groups (G, M, N), as TMA writes them or adds to them, in boxes
// of a warp's 16 rows x 32 columns: 2 KiB, too. Rows must be a multiple of 16 bytes.
constexpr int sum_columns = 32;
inline CUtensorMap sums_map(const Tensor& sums) {
    const int64_t N = sums.cols(), M = sums.size(-2), G = sums.rows() / M, size = sizeof(float);
    return N % 4 == 0 ? tensor_map(sums.data(), {{N, size, sum_columns},
                                                 {M, N * size, box_rows},
                                                 {G, M * N * size, 1},
                                                 {1, G * M * N * size, 1}})
                      : CUtensorMap{};
}

// ---- on the device ------------------------------------------------------------------------------

// Tile `index` of `down` x `across`, in an order in which tiles that are computed at the same time
// share rows of A and B in L2: groups of `below` rows of tiles, column by column within a group.
struct Tile {
    int row, column;
};
__device__ inline Tile tile_at(int index, int down, int across, int below) {
    const int group = index / (below * across), in_group = index % (below * across);
    const int here = down - group * below < below ? down - group * below
                                                  : below;  // fewer rows in the last group
    return {group * below + in_group % here, in_group / here};
}

// Stores 16 x 64 results of a warp, rounded and in stmatrix's order, in C from (row, column) on,
// through one of its boxes. The caller's lane 0 waits for the last ones.
constexpr int packs = box_columns / 16;
template <int boxes>
__device__ void store_box(const CUtensorMap* C, int row, int column,
                          Element (&box)[box_rows * box_columns],
                          const uint32_t (&rounded)[packs][4]) {
    const int lane = int(threadIdx.x) % 32;
    if (lane == 0) tma_store_wait_read<boxes - 1>();  // TMA has read what was in this box
    __syncwarp();
#pragma unroll
    for (int j = 0; j < packs; ++j)
        stmatrix(tile_chunk<box_columns>(box, lane % 16, 2 * j + lane / 16), rounded[j][0],
                 rounded[j][1], rounded[j][2], rounded[j][3]);
    fence_async_proxy();
    __syncwarp();
    if (lane == 0) {
        tma_store(C, box, column, row);
        tma_store_commit();
    }
}

// Rounds columns 64 part .. 64 part + 63 of a warp's sums.
template <int tiles>
__device__ void round_part(uint32_t (&rounded)[packs][4], const float (&sum)[tiles][4], int part) {
#pragma unroll
    for (int j = 0; j < packs; ++j)
        as_a(rounded[j], sum[2 * (part * packs + j)], sum[2 * (part * packs + j) + 1]);
}

// Stores a warp's 16 x (8 tiles) sums at once, through its boxes in turn.
template <int boxes, int tiles>
__device__ void store_through_boxes(const CUtensorMap* C, int row, int column,
                                    Element (&box)[boxes][box_rows * box_columns],
                                    const float (&sum)[tiles][4]) {
#pragma unroll
    for (int part = 0; part < tiles * 8 / box_columns; ++part) {
        uint32_t rounded[packs][4];
        round_part(rounded, sum, part);
        store_box<boxes>(C, row, column + part * box_columns, box[part % boxes], rounded);
    }
}

// Does so in fp32, for one of C's groups. If `add`, the copy engine adds to the values in memory,
// and no thread waits for it.
template <int boxes, int tiles>
__device__ void store_through_boxes(const CUtensorMap* C, bool add, int group, int row, int column,
                                    Element (&box)[boxes][box_rows * box_columns],
                                    const float (&sum)[tiles][4]) {
    static_assert(sizeof(float) * sum_columns == sizeof(Element) * box_columns);
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int part = 0; part < tiles * 8 / sum_columns; ++part) {
        float* const to = reinterpret_cast<float*>(box[part % boxes]);
        if (lane == 0) tma_store_wait_read<boxes - 1>();
        __syncwarp();
#pragma unroll
        for (int j = 0; j < sum_columns / 8; ++j)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                // A chunk is 16 bytes of a row; wgmma.cuh says where it lies.
                const int r = 8 * half + lane / 4, chunk = (2 * j + lane % 4 / 2) ^ (r % 8);
                const float* const two = &sum[part * sum_columns / 8 + j][2 * half];
                store(to + r * sum_columns + chunk * 4 + lane % 2 * 2,
                      Pack<float, 2>{{two[0], two[1]}});
            }
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            const int here = column + part * sum_columns;
            if (add)
                tma_add(C, to, here, row, group, 0);
            else
                tma_store(C, to, here, row, group, 0);
            tma_store_commit();
        }
    }
}

// Stores a warp's sums, as bf16, while the next tile is multiplied, so that the tensor cores need
// not wait until the copy engine has read them (07_kernels/6_hopper/6_product_async_store.cu).
// Rounded, the sums need half of their registers, and the next sums fit beside them: at each of the
// next tile's first steps, when its product has been issued, 64 columns leave.
template <int tiles>
class LaterStore {
public:
    static constexpr int parts = tiles * 8 / box_columns;

    __device__ void keep(const float (&sum)[tiles][4], int row, int column) {
#pragma unroll
        for (int part = 0; part < parts; ++part) round_part(rounded_[part], sum, part);
        row_ = row, column_ = column, kept_ = true;
    }
    // Stores the part whose turn is at this step, if there is one.
    template <int boxes>
    __device__ void at_step(int step, const CUtensorMap* C,
                            Element (&box)[boxes][box_rows * box_columns]) const {
        if (!kept_) return;
#pragma unroll
        for (int part = 0; part < parts; ++part)
            if (step == part)
                store_box<boxes>(C, row_, column_ + part * box_columns, box[part % boxes],
                                 rounded_[part]);
    }
    // Stores the remaining parts, after `steps` steps.
    template <int boxes>
    __device__ void finish(int steps, const CUtensorMap* C,
                           Element (&box)[boxes][box_rows * box_columns]) {
        for (; steps < parts; ++steps) at_step(steps, C, box);
        kept_ = false;
    }

private:
    uint32_t rounded_[parts][packs][4];
    int row_, column_;
    bool kept_ = false;
};

}  // namespace ultrascale
