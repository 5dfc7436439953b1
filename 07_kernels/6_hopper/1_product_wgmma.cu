// Hopper's product: C = A B^T in bf16 with wgmma. Four warps (a warpgroup) add 16 k to 64 x 128
// results in one instruction, whose operands come from shared memory, so no thread loads fragments;
// and one thread asks the copy engine (TMA) for a whole tile, so the others compute no addresses.
//
//     block 128 x 128, 64 of K at a time              thread 0:   [ask]          [ask]
//                  B: 128 rows of 64 k                TMA:         [copy]         [copy]
//              +-----------------------+              all:               [wgmma]        [wgmma]
//     A: 128   | warpgroup 0: 64 x 128 |
//     rows of  +-----------------------+              One stage: a copy and the product of what it
//     64 k     | warpgroup 1: 64 x 128 |              brings take turns. Several blocks on an SM
//              +-----------------------+              fill each other's gaps.
//
// The tensor map, a parameter of the kernel, holds the matrix's address and sizes and the size of
// the box to copy. TMA writes the box swizzled, with zeros outside the matrix, and counts its bytes
// at an mbarrier, where all threads wait. (common/cuda/hopper.cuh, wgmma.cuh.)
#include "product.cuh"

namespace ultrascale::kernels {
namespace {

#ifndef ULTRASCALE_SIMT

constexpr int tile_rows = 128, tile_columns = 128;  // a block's part of C
constexpr int threads = 128 * (tile_rows / 64);
constexpr int tiles_below = 16;  // order of tiles: product.cuh

__global__ void __launch_bounds__(threads)
    product(Element* C /* (M, N) */, int M, int N, int K,
            const __grid_constant__ CUtensorMap A /* (M, K) */,
            const __grid_constant__ CUtensorMap B /* (N, K) */) {
    __shared__ __align__(1024) Element a[tile_rows * k_step], b[tile_columns * k_step];
    __shared__ Barrier full;
    const Tile tile = tile_at(int(blockIdx.x), (M + tile_rows - 1) / tile_rows,
                              (N + tile_columns - 1) / tile_columns, tiles_below);
    const int row0 = tile.row * tile_rows, column0 = tile.column * tile_columns,
              warpgroup = same_in_warp(int(threadIdx.x) / 32) / 4;
    if (threadIdx.x == 0) {
        barrier_init(&full, 1);
        barrier_init_fence();
    }
    __syncthreads();

    float sum[tile_columns / 8][4];
    uint32_t parity = 0;
    for (int k = 0; k < K; k += k_step) {
        if (threadIdx.x == 0) {
            barrier_arrive_expect(&full, sizeof a + sizeof b);
            tma_load(a, &A, &full, k, row0);
            tma_load(b, &B, &full, k, column0);
        }
        barrier_wait(&full, parity);
        parity ^= 1;
        wgmma_fence();
#pragma unroll
        for (int k16 = 0; k16 < k_step / 16; ++k16)
            wgmma(sum, k_major(a + warpgroup * 64 * k_step, k16), k_major(b, k16), k + k16 > 0);
        wgmma_commit();
        wgmma_wait<0>(sum);
        __syncthreads();  // both warpgroups have read a and b
    }
    store_sums(C, M, N, row0 + warpgroup * 64, column0, sum);
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const Operand A(args.in[0], tile_rows), B(args.in[1], tile_columns);
    LAUNCH(product, unsigned(ceil_div(M, tile_rows) * ceil_div(N, tile_columns)), threads, 0)
    (static_cast<Element*>(args.out.data()), M, N, K, A.map, B.map);
}

#endif

const Registered here{"product bf16", "wgmma on tiles that TMA brings", ON_GPU(run), Needs::hopper};

}  // namespace
}  // namespace ultrascale::kernels
