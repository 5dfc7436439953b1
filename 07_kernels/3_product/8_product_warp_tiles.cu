// Tiles for warps: a block's tile is divided into one tile for each warp, and this into a tile in
// each thread's registers. Each level reuses what the level above has loaded. The bottleneck is now
// the path from shared memory to registers, so a warp's tile should be as square as possible.
//
//     block 128 x 128: 8 warps         warp 32 x 64: its lanes, 4 below each other and 8 abreast,
//     +-----------+-----------+        cover 16 x 32; the warp has 2 x 2 of these
//     |  warp 0   |  warp 1   |        +-------+-------+      lane  0  1  8  9 16 17 24 25
//     |  warp 2   |  warp 3   |        |       |       |            2  3 10 11 18 19 26 27
//     |  warp 4   |  warp 5   |        +-------+-------+            4  5 12 13 20 21 28 29
//     |  warp 6   |  warp 7   |        |       |       |            6  7 14 15 22 23 30 31
//     +-----------+-----------+        +-------+-------+
//
//     lane 8 x 8: 2 x 2 squares of 4 x 4, 16 rows and 32 columns apart
//
// Before, a warp was 2 x 16 threads, and read 144 different numbers per k for 2048 multiply-adds;
// this one reads 96. Lanes that are 1 apart need the same rows, lanes that are 2 apart the same
// columns, because a GPU serves neighbours that read the same 16 bytes together. (ncu counts fewer
// turns of shared memory than the microscope, which does not know this rule.)
//
// The numbers of each k are loaded while the k before it is multiplied, into registers of their
// own, and all 16 k are unrolled, so that addresses are constants: nine of ten instructions are
// multiply-adds. With 128 registers per thread an SM holds two blocks: one multiplies while the
// other waits at its barrier. A step of 16 k means one barrier for 1024 multiply-adds of a thread,
// and 33 KB of shared memory per block.
//
// One difference from cuBLAS remains: a multiply-add has three operands, and registers lie in
// banks, too. ncu calls the wait for them "dispatch stall".
#include "tiles.cuh"

namespace ultrascale::kernels {
namespace {

constexpr int tile = 128, k_step = 16, threads = 256,
              padding = 4;  // padding: see 6_product_float4.cu
constexpr int warp_rows = 32, warp_columns = 64, warps_across = tile / warp_columns;
constexpr int lane_rows = 4, lane_columns = 8, squares_down = 2, squares_across = 2;
static_assert(squares_down * lane_rows * 4 == warp_rows &&
              squares_across * lane_columns * 4 == warp_columns);
static_assert(tile / warp_rows * warps_across * 32 == threads);

__global__ void __launch_bounds__(threads, 2)
    product(float* C /* (M, N) */, const float* A /* (M, K) */, const float* B /* (K, N) */,
            int64_t M, int64_t N, int64_t K) {
    __shared__ __align__(16) float a[2][k_step][tile + padding], b[2][k_step][tile];
    const int64_t row0 = int64_t(blockIdx.y) * tile,
                  column0 = int64_t(blockIdx.x) * tile;  // the block's
    const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int y = warp / warps_across * warp_rows +
                  lane / 2 % lane_rows * 4;  // first row of this thread in the block's tile
    const int x =
        warp % warps_across * warp_columns + (lane / 8 * 2 + lane % 2) * 4;  // and first column

    // This thread loads two k of every 32nd row of A, and four columns of every 8th row of B.
    const int a_k = thread % 8, a_row = thread / 8, b_k = thread / 32, b_column = thread % 32 * 4;
    constexpr int a_rows = threads / 8, b_rows = threads / 32;  // that all threads load at a time
    const bool whole = row0 + tile <= M && column0 + tile <= N && N % 4 == 0;
    const float *a_from = A + (row0 + a_row) * K + a_k, *b_from = B + b_k * N + column0 + b_column;
    const auto begin_load = [&](int buffer, int64_t k0) {  // and moves on to the next step
        // There are no bounds checks, since they would take as many instructions as the copies.
        if (whole && k0 + k_step <= K) {
#pragma unroll
            for (int r = 0; r < tile; r += a_rows)
#pragma unroll
                for (int k = 0; k < k_step; k += 8)
                    __pipeline_memcpy_async(&a[buffer][a_k + k][a_row + r], a_from + r * K + k, 4);
#pragma unroll
            for (int k = 0; k < k_step; k += b_rows)
                __pipeline_memcpy_async(&b[buffer][b_k + k][b_column], b_from + k * N, 16);
        } else {
#pragma unroll 1
            for (int r = 0; r < tile; r += a_rows)
                for (int k = 0; k < k_step; k += 8)
                    begin_copy(&a[buffer][a_k + k][a_row + r], a_from + r * K + k,
                               row0 + a_row + r < M && k0 + a_k + k < K);
#pragma unroll 1
            for (int k = 0; k < k_step; k += b_rows)
                for (int c = 0; c < 4; ++c)
                    begin_copy(&b[buffer][b_k + k][b_column + c], b_from + k * N + c,
                               k0 + b_k + k < K && column0 + b_column + c < N);
        }
        __pipeline_commit();
        a_from += k_step, b_from += k_step * N;
    };

    float sum[squares_down][squares_across][4][4] = {};
    float a_values[2][squares_down][4],
        b_values[2][squares_across][4];  // for this k, and for the next
    int now = 0;                         // the buffer that is multiplied
    const auto load_values = [&](int k) {
#pragma unroll
        for (int i = 0; i < squares_down; ++i)
            copy4(a_values[k % 2][i], &a[now][k][y + 4 * lane_rows * i]);
#pragma unroll
        for (int j = 0; j < squares_across; ++j)
            copy4(b_values[k % 2][j], &b[now][k][x + 4 * lane_columns * j]);
    };
    begin_load(now, 0);
    for (int64_t k0 = 0; k0 < K; k0 += k_step, now = 1 - now) {
        __pipeline_wait_prior(0);  // this thread's copies have arrived
        __syncthreads();           // so have all threads'; and all have read the other buffer
        load_values(0);
        if (k0 + k_step < K) begin_load(1 - now, k0 + k_step);
#pragma unroll
        for (int k = 0; k < k_step; ++k) {
            if (k + 1 < k_step) load_values(k + 1);
#pragma unroll
            for (int i = 0; i < squares_down; ++i)
#pragma unroll
                for (int j = 0; j < squares_across; ++j)
#pragma unroll
                    for (int r = 0; r < 4; ++r)
#pragma unroll
                        for (int c = 0; c < 4; ++c)
                            sum[i][j][r][c] += a_values[k % 2][i][r] * b_values[k % 2][j][c];
        }
    }
#pragma unroll
    for (int i = 0; i < squares_down; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
            for (int j = 0; j < squares_across; ++j)
                store4(C, M, N, row0 + y + 4 * lane_rows * i + r,
                       column0 + x + 4 * lane_columns * j, sum[i][j][r]);
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const dim3 grid(unsigned(ceil_div(N, tile)), unsigned(ceil_div(M, tile)));
    LAUNCH(product, grid, threads, 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), M, N, K);
}

const Registered here{"product", "32 x 64 per warp; the next k is loaded meanwhile", run};

}  // namespace
}  // namespace ultrascale::kernels
