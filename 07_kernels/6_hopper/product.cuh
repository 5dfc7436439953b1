// What the rungs of this ladder share: the operands as TMA reads them, the order of tiles, and a
// plain way to store what a warpgroup has summed.
#pragma once

#include "../kernel.h"

#ifndef ULTRASCALE_SIMT
#include "cuda/hopper.cuh"

namespace ultrascale::kernels {

constexpr int k_step = 64;  // k per tile in shared memory: rows of 128 bytes

// ---- on the host --------------------------------------------------------------------------------

// A bf16 matrix (rows, K) as TMA reads it, in boxes of box_rows x k_step, with zeros after the last
// k and the last row. TMA requires rows that begin at multiples of 16 bytes: other matrices are
// copied to workspace first, which must live until the kernel is launched.
class Operand {
public:
    Operand(const Tensor& matrix, int box_rows) : matrix_(matrix) {
        const int64_t rows = matrix.rows(), K = matrix.cols(), stride = ceil_div(K, 8) * 8,
                      size = sizeof(Element);
        if (stride != K) {
            matrix_ = Tensor::empty({rows, stride}, matrix.dtype(), Memory::workspace);
            cuda_check(cudaMemcpy2DAsync(matrix_.data(), size_t(stride * size), matrix.data(),
                                         size_t(K * size), size_t(K * size), size_t(rows),
                                         cudaMemcpyDeviceToDevice, cuda_compute()));
        }
        map = tensor_map(matrix_.data(), {{K, size, k_step}, {rows, stride * size, box_rows}});
    }
    CUtensorMap map;

private:
    Tensor matrix_;
};

// The same for an e4m3 matrix (rows, K), in boxes of 128 bytes. It is a tensor of int32 whose rows
// are padded to multiples of 16 bytes (problem.h).
inline CUtensorMap e4m3_map(const Tensor& matrix, int64_t K, int box_rows) {
    return tensor_map(matrix.data(), {{K, 1, 128}, {matrix.rows(), 4 * matrix.cols(), box_rows}});
}

// A bf16 matrix C as TMA writes it, in boxes of a warp's 16 rows x 64 columns: 2 KiB. Only if rows
// are a multiple of 16 bytes.
constexpr int box_rows = 16, box_columns = 64;
inline CUtensorMap result_map(const Tensor& C) {
    const int64_t N = C.cols(), size = sizeof(Element);
    return N % 8 == 0
               ? tensor_map(C.data(), {{N, size, box_columns}, {C.rows(), N * size, box_rows}})
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

// Stores the sums of a warpgroup in rows row0 .. row0 + 63 and columns column0 .. of C (M, N), as
// far as these exist.
template <int tiles>
__device__ void store_sums(Element* C, int64_t M, int64_t N, int64_t row0, int64_t column0,
                           const float (&sum)[tiles][4]) {
    const int warp = int(threadIdx.x) / 32 % 4, lane = int(threadIdx.x) % 32;
    const int64_t column = column0 + lane % 4 * 2;
    const int columns =
        int(min(N - column, int64_t(8 * tiles)));  // from this thread's first one on
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t row = row0 + 16 * warp + 8 * half + lane / 4;
        if (row >= M) continue;
        Element* const to = C + row * N + column;
        if (N % 2 == 0) {  // two results are 4 aligned bytes
#pragma unroll
            for (int j = 0; j < tiles; ++j)
                if (8 * j < columns)
                    *reinterpret_cast<uint32_t*>(to + 8 * j) =
                        pack(sum[j][2 * half], sum[j][2 * half + 1]);
        } else {
#pragma unroll
            for (int j = 0; j < tiles; ++j) {
                if (8 * j < columns) to[8 * j] = __float2bfloat16_rn(sum[j][2 * half]);
                if (8 * j + 1 < columns) to[8 * j + 1] = __float2bfloat16_rn(sum[j][2 * half + 1]);
            }
        }
    }
}

// Stores a warp's 16 x (8 tiles) sums in C, from (row, column) on, through its boxes in turn. The
// caller's lane 0 waits for the last ones (6_product_async_store.cu).
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

}  // namespace ultrascale::kernels

#endif
