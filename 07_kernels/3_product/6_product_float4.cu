// 16-byte loads, from global and from shared memory, need a quarter of the load instructions, so
// more of the instructions multiply.
//
//   A thread needs four rows of a at one k. In shared memory they are neighbours if a is stored
//   there transposed, k by k:
//
//                                                                a thread's 8 x 8 results: four
//       A in memory           a in shared memory                 4 x 4 squares, 64 apart
//       row 0  k0 k1 ... k7   k0  row 0, 1, 2, 3, ... 127 + 4        b:   x          x + 64
//       row 1  k0 k1 ... k7   k1  row 0, 1, 2, 3, ... 127 + 4    a: y     [4 x 4]    [4 x 4]
//       ...                   ...                                   y+64  [4 x 4]    [4 x 4]
//
//   A warp's transposed store covers 16 rows of two k that are 4 apart. In rows of 128 floats both
//   k would be in the same banks; 4 unused floats at the end of each row move the second k by 16
//   banks.
//
// Now 64 multiply-adds need 4 loads instead of 16.
#include "tiles.cuh"

namespace ultrascale::kernels {
namespace {

constexpr int tile = 128;  // rows and columns of C per block
constexpr int k_step = 8;  // k per step: a float4 of A and one of B for each thread
constexpr int across = 16, threads = across * across, half = tile / 2, padding = 4;

// Elements column .. column + 3 of a row, zeros outside; column is a multiple of 4.
__device__ float4 load4(const float* matrix, int64_t rows, int64_t columns, int64_t row,
                        int64_t column) {
    const float* from = matrix + row * columns + column;
    if (row >= rows || column >= columns) return make_float4(0, 0, 0, 0);
    // Otherwise not all rows begin at multiples of 16 bytes.
    if (columns % 4 == 0) return *reinterpret_cast<const float4*>(from);
    const int64_t left = columns - column;
    return make_float4(from[0], left > 1 ? from[1] : 0, left > 2 ? from[2] : 0,
                       left > 3 ? from[3] : 0);
}
__global__ void __launch_bounds__(threads, 2)  // 2 blocks per SM: at most 128 registers per thread
    product(float* C /* (M, N) */, const float* A /* (M, K) */, const float* B /* (K, N) */,
            int64_t M, int64_t N, int64_t K) {
    __shared__ __align__(16) float a[k_step][tile + padding], b[k_step][tile];
    const int64_t row0 = int64_t(blockIdx.y) * tile,
                  column0 = int64_t(blockIdx.x) * tile;  // the block's
    const int thread = int(threadIdx.x), x = thread % across * 4, y = thread / across * 4;
    const int a_row = thread / 2,
              a_k = thread % 2 * 4;  // this thread's part of A: 128 rows of two float4s
    const int b_k = thread / (tile / 4),
              b_column = thread % (tile / 4) * 4;  // and of B: 8 rows of 32 float4s
    float sum[2][2][4][4] = {};
    // exercise 07.7 begin: load a float4 of A, transposed, and one of B; 8 x 8 products
    for (int64_t k0 = 0; k0 < K; k0 += k_step) {
        const float4 loaded_a = load4(A, M, K, row0 + a_row, k0 + a_k);
        a[a_k + 0][a_row] = loaded_a.x, a[a_k + 1][a_row] = loaded_a.y,
                a[a_k + 2][a_row] = loaded_a.z, a[a_k + 3][a_row] = loaded_a.w;
        *reinterpret_cast<float4*>(&b[b_k][b_column]) =
            load4(B, K, N, k0 + b_k, column0 + b_column);
        __syncthreads();
#pragma unroll
        for (int k = 0; k < k_step; ++k) {
            float a_values[2][4], b_values[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i)
                copy4(a_values[i], &a[k][y + half * i]), copy4(b_values[i], &b[k][x + half * i]);
#pragma unroll
            for (int i = 0; i < 2; ++i)
#pragma unroll
                for (int j = 0; j < 2; ++j)
#pragma unroll
                    for (int r = 0; r < 4; ++r)
#pragma unroll
                        for (int c = 0; c < 4; ++c)
                            sum[i][j][r][c] += a_values[i][r] * b_values[j][c];
        }
        __syncthreads();
    }
    // exercise 07.7 end
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                store4(C, M, N, row0 + y + half * i + r, column0 + x + half * j, sum[i][j][r]);
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const dim3 grid(unsigned(ceil_div(N, tile)), unsigned(ceil_div(M, tile)));
    LAUNCH(product, grid, threads, 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), M, N, K);
}

const Registered here{"product", "16-byte loads; a transposed", run};

}  // namespace
}  // namespace ultrascale::kernels
