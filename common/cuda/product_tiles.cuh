// What matrix products on wgmma share: the order of tiles, and results that leave through the copy
// engine. 07_kernels/6_hopper teaches it step by step.
#pragma once

#include "core/tensor.h"
#include "hopper.cuh"
#include "packs.cuh"

namespace ultrascale {

constexpr int k_step = 64;  // k per tile in shared memory: rows of 128 bytes

// ---- on the host --------------------------------------------------------------------------------

// A bf16 matrix C as TMA writes it, in boxes of a warp's 16 rows x 64 columns: 2 KiB. Only if rows
// are a multiple of 16 bytes.
constexpr int box_rows = 16, box_columns = 64;
inline CUtensorMap result_map(const Tensor& C) {
    const int64_t N = C.cols(), size = sizeof(Element);
    return N % 8 == 0
               ? tensor_map(C.data(), {{N, size, box_columns}, {C.rows(), N * size, box_rows}})
               : CUtensorMap{};
}

// fp32 sums, (M, N) or for each of G groups (G, M, N), as TMA writes them or adds to them, in boxes
// of a warp's 16 rows x 32 columns: 2 KiB, too. Only if rows are a multiple of 16 bytes.
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

// Stores a warp's 16 x (8 tiles) sums in C, from (row, column) on, through its boxes in turn. The
// caller's lane 0 waits for the last ones (07_kernels/6_hopper/6_product_async_store.cu).
template <int boxes, int tiles>
__device__ void store_through_boxes(const CUtensorMap* C, int row, int column,
                                    Element (&box)[boxes][box_rows * box_columns],
                                    const float (&sum)[tiles][4]) {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int part = 0; part < tiles * 8 / box_columns; ++part) {
        Element* const to = box[part % boxes];
        if (lane == 0) tma_store_wait_read<boxes - 1>();  // TMA has read what was in this box
        __syncwarp();
#pragma unroll
        for (int j = 0; j < box_columns / 8; j += 2) {
            uint32_t rounded[4];
            as_a(rounded, sum[part * box_columns / 8 + j], sum[part * box_columns / 8 + j + 1]);
            stmatrix(tile_chunk<box_columns>(to, lane % 16, j + lane / 16), rounded[0], rounded[1],
                     rounded[2], rounded[3]);
        }
        fence_async_proxy();
        __syncwarp();
        if (lane == 0) {
            tma_store(C, to, column + part * box_columns, row);
            tma_store_commit();
        }
    }
}

// The same in fp32, of one of C's groups. If `add`, the copy engine adds to what is in memory: no
// thread waits for it.
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
                // 16 bytes of a row are a chunk, which lies where wgmma.cuh says
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

}  // namespace ultrascale
