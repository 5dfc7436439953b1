// More work per thread (thread coarsening): each thread has 8 results in one column, and a number
// that it reads from b serves all eight.
//
//                      b  16 x 64               for each k:
//                    +----------+                   1 load  of b[k][column], kept in a register
//                    |    |     |                   8 loads of a[rows][k], the same for a whole
//        a           |    |     |                           warp: broadcasts
//      +------+      +----------+                   8 multiply-adds
//      | ---- |      |    0     |
//      | ---- |  ->  |    1     |  C            9 loads from shared memory for 8 multiply-adds
//      | ---- |      |   ...    |  64 x 64      instead of 16; and a block with 512 threads now has
//      | ---- |      |    7     |               64 x 64 results: half the traffic of 32 x 32.
//      +------+      +----------+
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

// Other texts call tile BM = BN, k_step BK, and results TM (from the next kernel on, TM = TN).
constexpr int tile = 64;    // rows and columns of C per block
constexpr int k_step = 16;  // k per step
constexpr int results = 8;  // a thread's, in one column
constexpr int threads = tile * tile / results;

__global__ void __launch_bounds__(threads)
    product(float* C /* (M, N) */, const float* A /* (M, K) */, const float* B /* (K, N) */,
            int64_t M, int64_t N, int64_t K) {
    __shared__ float a[tile][k_step], b[k_step][tile];
    const int64_t row0 = int64_t(blockIdx.y) * tile,
                  column0 = int64_t(blockIdx.x) * tile;  // the block's
    const int thread = int(threadIdx.x), column = thread % tile, row = thread / tile * results;
    float sum[results] = {};
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
#pragma unroll 4  // nvcc then loads four neighbours in a row of a at once
        for (int k = 0; k < k_step; ++k) {
            const float b_value = b[k][column];
#pragma unroll
            for (int r = 0; r < results; ++r) sum[r] += a[row + r][k] * b_value;
        }
        __syncthreads();
    }
// Registers have no index: `sum` stays in them only if the compiler knows every r.
#pragma unroll
    for (int r = 0; r < results; ++r)
        if (row0 + row + r < M && column0 + column < N)
            C[(row0 + row + r) * N + column0 + column] = sum[r];
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const dim3 grid(unsigned(ceil_div(N, tile)), unsigned(ceil_div(M, tile)));
    LAUNCH(product, grid, threads, 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), M, N, K);
}

const Registered here{"product", "8 results per thread share one value of b", run};

}  // namespace
}  // namespace ultrascale::kernels
