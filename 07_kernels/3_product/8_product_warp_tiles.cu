// Tiles for warps: a block's tile is cut into one for each warp, this into a thread's registers. Each level reuses what the one above
// has brought, and the narrowest way is now from shared memory to registers, so a warp's tile should be as square as it can be.
//
//     block 128 x 128: 4 warps         warp 64 x 64: its lanes, 8 below each other and 4 abreast,     lane 8 x 16: 2 x 4 squares
//     +--------+--------+              cover 32 x 16; the warp has 2 x 4 of these                     of 4 x 4, 32 rows and 16
//     | warp 0 | warp 1 |              +----+----+----+----+      lane  0  1 16 17                    columns apart
//     |        |        |              |    |    |    |    |            2  3 18 19
//     +--------+--------+              +----+----+----+----+            4  5 20 21
//     | warp 2 | warp 3 |              |    |    |    |    |            ...
//     |        |        |              +----+----+----+----+           14 15 30 31
//     +--------+--------+
//
// 8 x 16 results a thread: 128 multiply-adds for 6 loads of 16 bytes. Before it were 64 for 4, and a warp of 2 x 16 threads read 144
// different numbers for 2048 multiply-adds; this one reads 128 for 4096. The order of the lanes: 1 apart they want the same rows, 2 apart
// the same columns. A GPU is said to serve such lanes together, so that a load takes 2 turns; the microscope counts the 4 of other orders.
//
// A scheduler issues one instruction a clock, a multiply-add or another, so all others count: of the inner loop's instructions 93 % are
// multiply-adds. A k's numbers are loaded while the k before it is multiplied. Registers: 128 sums and twice 24 numbers, with addresses
// some 240 of the 255 a thread can have. 128 threads with 255 registers take half of an SM's 65536: two blocks share it, and one multiplies
// while the other is at its barrier. 8 warps are few, but each has 128 independent multiply-adds. 16 of K at a time: a barrier for 2048
// multiply-adds of a thread, and 33 KB of shared memory a block.
#include "tiles.cuh"

namespace ultrascale::kernels {
namespace {

constexpr int tile = 128, k_step = 16, threads = 128, padding = 4;  // padding: see 6_product_float4.cu
constexpr int warp_tile = 64, squares_down = 2, squares_across = 4;
constexpr int lane_rows = 8, lane_columns = 4;
static_assert(squares_down * lane_rows * 4 == warp_tile && squares_across * lane_columns * 4 == warp_tile);

__global__ void __launch_bounds__(threads, 2)
    product(float* C /* (M, N) */, const float* A /* (M, K) */, const float* B /* (K, N) */, int64_t M, int64_t N, int64_t K) {
    __shared__ __align__(16) float a[2][k_step][tile + padding], b[2][k_step][tile];
    const int64_t row0 = int64_t(blockIdx.y) * tile, column0 = int64_t(blockIdx.x) * tile;  // of the block
    const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int y = warp / 2 * warp_tile + lane / 2 % lane_rows * 4;        // first row of this thread in the block's tile
    const int x = warp % 2 * warp_tile + (lane / 16 * 2 + lane % 2) * 4;  // and first column

    // What this thread brings: two k of every 16th row of A, four columns of every 4th row of B.
    const int a_k = thread % 8, a_row = thread / 8, b_k = thread / 32, b_column = thread % 32 * 4;
    constexpr int a_rows = threads / 8, b_rows = threads / 32;  // of all threads at a time
    const bool whole = row0 + tile <= M && column0 + tile <= N && N % 4 == 0;
    const float *a_from = A + (row0 + a_row) * K + a_k, *b_from = B + b_k * N + column0 + b_column;
    const auto begin_load = [&](int buffer, int64_t k0) {  // and moves on to the next
        if (whole && k0 + k_step <= K) {                   // no questions asked: they would cost as many instructions as the copies
#pragma unroll
            for (int r = 0; r < tile; r += a_rows)
#pragma unroll
                for (int k = 0; k < k_step; k += 8) __pipeline_memcpy_async(&a[buffer][a_k + k][a_row + r], a_from + r * K + k, 4);
#pragma unroll
            for (int k = 0; k < k_step; k += b_rows) __pipeline_memcpy_async(&b[buffer][b_k + k][b_column], b_from + k * N, 16);
        } else {
#pragma unroll 1
            for (int r = 0; r < tile; r += a_rows)
                for (int k = 0; k < k_step; k += 8)
                    begin_copy(&a[buffer][a_k + k][a_row + r], a_from + r * K + k, row0 + a_row + r < M && k0 + a_k + k < K);
#pragma unroll 1
            for (int k = 0; k < k_step; k += b_rows)
                for (int c = 0; c < 4; ++c)
                    begin_copy(&b[buffer][b_k + k][b_column + c], b_from + k * N + c, k0 + b_k + k < K && column0 + b_column + c < N);
        }
        __pipeline_commit();
        a_from += k_step, b_from += k_step * N;
    };

    float sum[squares_down][squares_across][4][4] = {};
    float a_values[2][squares_down][4], b_values[2][squares_across][4];  // of this k, and of the next
    int now = 0;                                                         // the buffer that is multiplied
    const auto load_values = [&](int k) {
#pragma unroll
        for (int i = 0; i < squares_down; ++i) copy4(a_values[k % 2][i], &a[now][k][y + 4 * lane_rows * i]);
#pragma unroll
        for (int j = 0; j < squares_across; ++j) copy4(b_values[k % 2][j], &b[now][k][x + 4 * lane_columns * j]);
    };
    begin_load(now, 0);
    for (int64_t k0 = 0; k0 < K; k0 += k_step, now = 1 - now) {
        __pipeline_wait_prior(0);  // this thread's copies have come
        __syncthreads();           // everybody's; and all have read the other buffer
        load_values(0);
        if (k0 + k_step < K) begin_load(1 - now, k0 + k_step);
#pragma unroll 4  // wholly unrolled, ptxas moves the loads back to where they are used
        for (int k = 0; k < k_step; ++k) {
            if (k + 1 < k_step) load_values(k + 1);
#pragma unroll
            for (int i = 0; i < squares_down; ++i)
#pragma unroll
                for (int j = 0; j < squares_across; ++j)
#pragma unroll
                    for (int r = 0; r < 4; ++r)
#pragma unroll
                        for (int c = 0; c < 4; ++c) sum[i][j][r][c] += a_values[k % 2][i][r] * b_values[k % 2][j][c];
        }
    }
#pragma unroll
    for (int i = 0; i < squares_down; ++i)
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
            for (int j = 0; j < squares_across; ++j)
                store4(C, M, N, row0 + y + 4 * lane_rows * i + r, column0 + x + 4 * lane_columns * j, sum[i][j][r]);
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const dim3 grid(unsigned(ceil_div(N, tile)), unsigned(ceil_div(M, tile)));
    LAUNCH(product, grid, threads, 0)(args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), M, N, K);
}

const Registered here{"product", "64 x 64 a warp, 8 x 16 a thread", run};

}  // namespace
}  // namespace ultrascale::kernels
