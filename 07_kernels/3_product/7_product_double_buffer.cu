// Double buffering: while the block multiplies one pair of tiles, the next pair is on its way to a
// second pair of buffers.
//
//     before    load 0 | multiply 0 | load 1     | multiply 1 | load 2 | ...
//               no multiplication can run during a load
//
//     now       load 0 | load 1     | load 2     | load 3     |
//                      | multiply 0 | multiply 1 | multiply 2 |
//                        buffer 0     buffer 1     buffer 0
//               a load has as much time as a multiplication takes
//
// __pipeline_memcpy_async (cp.async, since Ampere) copies from global to shared memory without
// passing through a register, and the thread does not wait for it: it commits a batch of copies and
// waits for the batch later. Copies of 4 bytes transpose A on the way.
//
// One __syncthreads() for each pair of tiles is enough: behind it, all threads' copies of this pair
// have arrived, and no thread reads the other pair any more.
#include "tiles.cuh"

namespace ultrascale::kernels {
namespace {

constexpr int tile = 128;  // rows and columns of C per block
constexpr int k_step = 8;  // k per step
constexpr int across = 16, threads = across * across, half = tile / 2, padding = 4;

// begin_copy for elements column .. column + 3 of a row; column is a multiple of 4.
__device__ void begin_copy4(float* to, const float* matrix, int64_t rows, int64_t columns,
                            int64_t row, int64_t column) {
    const float* from = matrix + row * columns + column;
    if (columns % 4 == 0 && row < rows && column < columns)
        __pipeline_memcpy_async(to, from, 16);
    else
#pragma unroll
        for (int i = 0; i < 4; ++i)
            begin_copy(to + i, from + i, row < rows && column + i < columns);
}
__global__ void __launch_bounds__(threads, 2)  // 2 blocks per SM: at most 128 registers per thread
    product(float* C /* (M, N) */, const float* A /* (M, K) */, const float* B /* (K, N) */,
            int64_t M, int64_t N, int64_t K) {
    __shared__ __align__(16) float a[2][k_step][tile + padding], b[2][k_step][tile];
    const int64_t row0 = int64_t(blockIdx.y) * tile,
                  column0 = int64_t(blockIdx.x) * tile;  // the block's
    const int thread = int(threadIdx.x), x = thread % across * 4, y = thread / across * 4;
    // This thread loads one k of every 32nd row of A (a warp: 8 k, one sector, of 4 rows, into 32
    // different banks) and four columns of B.
    const int a_k = thread % k_step, a_row = thread / k_step;
    const int b_k = thread / (tile / 4), b_column = thread % (tile / 4) * 4;
    const auto begin_load = [&](int buffer, int64_t k0) {
#pragma unroll
        for (int r = a_row; r < tile; r += threads / k_step)
            begin_copy(&a[buffer][a_k][r], &A[(row0 + r) * K + k0 + a_k],
                       row0 + r < M && k0 + a_k < K);
        begin_copy4(&b[buffer][b_k][b_column], B, K, N, k0 + b_k, column0 + b_column);
        __pipeline_commit();
    };

    float sum[2][2][4][4] = {};
    int now = 0;  // the buffer that is multiplied
    begin_load(now, 0);
    for (int64_t k0 = 0; k0 < K; k0 += k_step, now = 1 - now) {
        __pipeline_wait_prior(0);  // this thread's copies have arrived
        __syncthreads();           // so have all threads'; and all have read the other buffer
        if (k0 + k_step < K) begin_load(1 - now, k0 + k_step);
#pragma unroll
        for (int k = 0; k < k_step; ++k) {
            float a_values[2][4], b_values[2][4];
#pragma unroll
            for (int i = 0; i < 2; ++i)
                copy4(a_values[i], &a[now][k][y + half * i]),
                    copy4(b_values[i], &b[now][k][x + half * i]);
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
    }
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

const Registered here{"product", "the next tiles arrive while these are multiplied", run};

}  // namespace
}  // namespace ultrascale::kernels
