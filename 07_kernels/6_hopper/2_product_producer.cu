// Warp specialisation: one warp, the producer, only asks for tiles; two warpgroups, the consumers,
// only multiply. A ring of stages lies between them, each with two barriers:
//
//     full[s]    the tiles of stage s are here: their bytes have come
//                (consumers wait, the producer announces)
//     empty[s]   both consumers have multiplied, stage s may be written again
//                (the producer waits, consumers arrive)
//
//     TMA:         | copy 0 | copy 1 | copy 2 | copy 3 | copy 4 |
//     consumers:            | wgmma 0| wgmma 1| wgmma 2| wgmma 3|         stage = step % 3
//
// There is no __syncthreads any more: the producer runs ahead until the ring is full, and a copy
// waits only for the products that read the stage it overwrites. The two consumers need not be in
// the same step.
//
// A barrier's phase is identified by its parity. In round r = step / 3 the consumers wait for phase
// r of full[s], the producer for phase r - 1 of empty[s]; phase -1 counts as complete.
// (common/cuda/hopper.cuh)
#include "product.cuh"

namespace ultrascale::kernels {
namespace {

#ifndef ULTRASCALE_SIMT

constexpr int tile_rows = 128, tile_columns = 128;
constexpr int stages = 3, blocks_per_sm = 2;  // 96 KiB each
constexpr int consumers = tile_rows / 64, threads = 128 * consumers + 32;
constexpr int tiles_below = 16;

struct Stage {
    Element a[tile_rows * k_step], b[tile_columns * k_step];
};
struct Shared {
    Stage stage[stages];
    Barrier full[stages], empty[stages];
};

__global__ void __launch_bounds__(threads, blocks_per_sm)
    product(Element* C /* (M, N) */, int M, int N, int K,
            const __grid_constant__ CUtensorMap A /* (M, K) */,
            const __grid_constant__ CUtensorMap B /* (N, K) */) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    const Tile tile = tile_at(int(blockIdx.x), (M + tile_rows - 1) / tile_rows,
                              (N + tile_columns - 1) / tile_columns, tiles_below);
    const int row0 = tile.row * tile_rows, column0 = tile.column * tile_columns,
              warpgroup = same_in_warp(int(threadIdx.x) / 32) / 4;
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; ++s) {
            barrier_init(&shared.full[s], 1);
            barrier_init(&shared.empty[s], consumers);
        }
        barrier_init_fence();
    }
    __syncthreads();

    PipelineState<stages> state;
    if (warpgroup == consumers) {  // the producer: the last warp, of which one thread is enough
        if (threadIdx.x % 32 != 0) return;
        for (int k = 0; k < K; k += k_step, state.advance()) {
            Stage& stage = shared.stage[state.stage];
            Barrier* const full = &shared.full[state.stage];
            barrier_wait(&shared.empty[state.stage], state.parity ^ 1);
            barrier_arrive_expect(full, sizeof(Stage));
            tma_load(stage.a, &A, full, k, row0);
            tma_load(stage.b, &B, full, k, column0);
        }
        return;
    }

    float sum[tile_columns / 8][4];
    for (int k = 0; k < K; k += k_step, state.advance()) {
        const Stage& stage = shared.stage[state.stage];
        barrier_wait(&shared.full[state.stage], state.parity);
        wgmma_fence();
#pragma unroll
        for (int k16 = 0; k16 < k_step / 16; ++k16)
            wgmma(sum, k_major(stage.a + warpgroup * 64 * k_step, k16), k_major(stage.b, k16),
                  k + k16 > 0);
        wgmma_commit();
        wgmma_wait<0>(sum);
        if (threadIdx.x % 128 == 0) barrier_arrive(&shared.empty[state.stage]);
    }
    store_sums(C, M, N, row0 + warpgroup * 64, column0, sum);
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const Operand A(args.in[0], tile_rows), B(args.in[1], tile_columns);
    LAUNCH(product, unsigned(ceil_div(M, tile_rows) * ceil_div(N, tile_columns)), threads,
           sizeof(Shared))
    (static_cast<Element*>(args.out.data()), M, N, K, A.map, B.map);
}

#endif

const Registered here{"product bf16", "a producer warp, a ring of 3 stages, mbarriers", ON_GPU(run),
                      Needs::hopper};

}  // namespace
}  // namespace ultrascale::kernels
