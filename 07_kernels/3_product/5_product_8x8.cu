// A tile of 8 x 8 results in a thread's registers: an outer product. 8 numbers of a and 8 of b give
// 64 multiply-adds.
//
//                      b  8 x 128                     for each k:
//                    +-------------+                      8 loads of a, 8 of b
//        a           | |  |  |  |  |                     64 multiply-adds: a quarter of a load for
//      +-----+       +-------------+                     each, where one result needs two
//      |  -  |       | x  x  x  x  |  C  128 x 128
//      |  -  |  ->   | x  x  x  x  |
//      |  -  |       | x  x  x  x  |
//      +-----+       +-------------+
//
// A thread's columns are 16 apart, so the 16 columns that its warp reads at a time are neighbours,
// in 16 different banks. (If each thread had 8 neighbouring columns, the threads' numbers would be
// 8 apart: 4 of them in each of 4 banks.)
//
// 64 sums take 64 registers, so fewer threads fit on an SM; but 64 independent multiply-adds hide
// latency as well as more warps would.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

constexpr int tile = 128;               // rows and columns of C per block
constexpr int k_step = 8;               // k per step: 4 KiB of a and 4 of b
constexpr int results = 8;              // a thread's, in each direction
constexpr int across = tile / results;  // 16 x 16 threads, and the distance of a thread's rows
constexpr int threads = across * across;

__global__ void __launch_bounds__(threads, 2)  // 2 blocks per SM: at most 128 registers per thread
    product(float* C /* (M, N) */, const float* A /* (M, K) */, const float* B /* (K, N) */,
            int64_t M, int64_t N, int64_t K) {
    __shared__ float a[tile][k_step], b[k_step][tile];
    const int64_t row0 = int64_t(blockIdx.y) * tile,
                  column0 = int64_t(blockIdx.x) * tile;  // the block's
    const int thread = int(threadIdx.x), x = thread % across, y = thread / across;
    float sum[results][results] = {};
    for (int64_t k0 = 0; k0 < K; k0 += k_step) {
        for (int i = thread; i < tile * k_step; i += threads) {
            const int r = i / k_step, k = i % k_step;
            a[r][k] = row0 + r < M && k0 + k < K ? A[(row0 + r) * K + k0 + k] : 0;
        }
        for (int i = thread; i < k_step * tile; i += threads) {
            const int k = i / tile, c = i % tile;
            b[k][c] = k0 + k < K && column0 + c < N ? B[(k0 + k) * N + column0 + c] : 0;
        }
        __syncthreads();
#pragma unroll 2  // fully unrolled, it would need more than 128 registers
        for (int k = 0; k < k_step; ++k) {
            float a_values[results], b_values[results];
#pragma unroll
            for (int i = 0; i < results; ++i)
                a_values[i] = a[y + across * i][k], b_values[i] = b[k][x + across * i];
#pragma unroll
            for (int r = 0; r < results; ++r)
#pragma unroll
                for (int c = 0; c < results; ++c) sum[r][c] += a_values[r] * b_values[c];
        }
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < results; ++r)
#pragma unroll
        for (int c = 0; c < results; ++c) {
            const int64_t row = row0 + y + across * r, column = column0 + x + across * c;
            if (row < M && column < N) C[row * N + column] = sum[r][c];
        }
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const dim3 grid(unsigned(ceil_div(N, tile)), unsigned(ceil_div(M, tile)));
    LAUNCH(product, grid, threads, 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), M, N, K);
}

const Registered here{"product", "8 x 8 results per thread, in registers", run};

}  // namespace
}  // namespace ultrascale::kernels
