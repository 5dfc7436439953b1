// Shared by the rungs of this ladder: the operands as TMA reads them, and a plain way to store a
// warpgroup's sums. More is in cuda/product_tiles.cuh, which the model's products use, too.
#pragma once

#include "../kernel.h"

#ifndef ULTRASCALE_SIMT
#include "cuda/clusters.cuh"
#include "cuda/product_tiles.cuh"

namespace ultrascale::kernels {

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

// A map of an e4m3 matrix (rows, K), in boxes of 128 bytes. The matrix is a tensor of int32 whose
// rows are padded to multiples of 16 bytes (problem.h).
inline CUtensorMap e4m3_map(const Tensor& matrix, int64_t K, int box_rows) {
    return tensor_map(matrix.data(), {{K, 1, 128}, {matrix.rows(), 4 * matrix.cols(), box_rows}});
}

// ---- on the device ------------------------------------------------------------------------------

// Stores the sums of a warpgroup in rows row0 .. row0 + 63 and columns column0 .. of C (M, N), as
// far as these exist.
template <int tiles>
__device__ void store_sums(Element* C, int64_t M, int64_t N, int64_t row0, int64_t column0,
                           const float (&sum)[tiles][4]) {
    const int warp = int(threadIdx.x) / 32 % 4, lane = int(threadIdx.x) % 32;
    const int64_t column = column0 + lane % 4 * 2;
    const int columns =
        int(min(N - column, int64_t(8 * tiles)));  // from this thread's first column on
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

}  // namespace ultrascale::kernels

#endif
