// A larger tile: 128 x 256, of which each consumer computes 64 x 256. A step reads 48 KiB for 128 x
// 256 x 64 multiply-adds, 85 FLOP per byte instead of 64, so L2 has less to do; so has shared
// memory, as each wgmma reads its 64 rows of A for 256 columns instead of 128.
//
//                  B: 256 rows of 64 k                    registers a thread     at launch    then
//              +-----------------------------------+      consumer 0                168       232
//     A: 128   |       consumer 0: 64 x 256        |      consumer 1                168       232
//     rows of  +-----------------------------------+      producer                  168        40
//     64 k     |       consumer 1: 64 x 256        |
//              +-----------------------------------+      x 128 threads             64512    64512
//
// A consumer uses 128 of its 232 registers for sums; an SM has 65536.
//
// A consumer's 128 sums and other values come near the 168 registers that each of 384 threads can
// have, while the producer needs hardly any: setmaxnreg moves registers from one warpgroup to
// others. It works on whole warpgroups, so the producer is a warpgroup, too, and 127 of its threads
// have nothing to do.
//
// Products stay in flight: a consumer waits only for those of the step *before*, and then frees
// that step's stage. So the tensor cores always have the next products in their queue.
#include "product.cuh"

namespace ultrascale::kernels {
namespace {

#ifndef ULTRASCALE_SIMT

constexpr int tile_rows = 128, tile_columns = 256;
constexpr int stages = 4;     // 48 KiB each
constexpr int under_way = 1;  // steps whose products a consumer leaves in flight
constexpr int consumers = tile_rows / 64, threads = 128 * (consumers + 1);
constexpr int launch_registers = 168, consumer_registers = 232,
              producer_registers = 40;  // 65536 / 384, rounded down to a multiple of 8
static_assert(consumers * consumer_registers + producer_registers <=
              (consumers + 1) * launch_registers);
constexpr int tiles_below = 16;

struct Stage {
    Element a[tile_rows * k_step], b[tile_columns * k_step];
};
struct Shared {
    Stage stage[stages];
    Barrier full[stages], empty[stages];
};

__global__ void __launch_bounds__(threads, 1)
    product(Element* C /* (M, N) */, int M, int N, int K,
            const __grid_constant__ CUtensorMap A /* (M, K) */,
            const __grid_constant__ CUtensorMap B /* (N, K) */) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    const Tile tile = tile_at(int(blockIdx.x), (M + tile_rows - 1) / tile_rows,
                              (N + tile_columns - 1) / tile_columns, tiles_below);
    const int row0 = tile.row * tile_rows, column0 = tile.column * tile_columns,
              warpgroup = same_in_warp(int(threadIdx.x) / 32) / 4;
    const int steps = (K + k_step - 1) / k_step;
    if (threadIdx.x == 0) {
        for (int s = 0; s < stages; ++s) {
            barrier_init(&shared.full[s], 1);
            barrier_init(&shared.empty[s], consumers);
        }
        barrier_init_fence();
    }
    __syncthreads();

    PipelineState<stages> state;
    if (warpgroup == consumers) {
        registers_fewer<producer_registers>();
        if (threadIdx.x % 128 == 0)
            for (int step = 0; step < steps; ++step, state.advance()) {
                Stage& stage = shared.stage[state.stage];
                Barrier* const full = &shared.full[state.stage];
                barrier_wait(&shared.empty[state.stage], state.parity ^ 1);
                barrier_arrive_expect(full, sizeof(Stage));
                tma_load(stage.a, &A, full, step * k_step, row0);
                tma_load(stage.b, &B, full, step * k_step, column0);
            }
    } else {
        registers_more<consumer_registers>();
        float sum[tile_columns / 8][4];
        PipelineState<stages> to_free;  // the first stage that is not yet free again
        for (int step = 0; step < steps; ++step, state.advance()) {
            const Stage& stage = shared.stage[state.stage];
            barrier_wait(&shared.full[state.stage], state.parity);
            wgmma_fence();
#pragma unroll
            for (int k16 = 0; k16 < k_step / 16; ++k16)
                wgmma(sum, k_major(stage.a + warpgroup * 64 * k_step, k16), k_major(stage.b, k16),
                      step + k16 > 0);
            wgmma_commit();
            wgmma_wait<under_way>(sum);
            if (step < under_way) continue;
            if (threadIdx.x % 128 == 0) barrier_arrive(&shared.empty[to_free.stage]);
            to_free.advance();
        }
        wgmma_wait<0>(sum);  // the last stages need not become free
        store_sums(C, M, N, row0 + warpgroup * 64, column0, sum);
    }
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const Operand A(args.in[0], tile_rows), B(args.in[1], tile_columns);
    LAUNCH(product, unsigned(ceil_div(M, tile_rows) * ceil_div(N, tile_columns)), threads,
           sizeof(Shared))
    (static_cast<Element*>(args.out.data()), M, N, K, A.map, B.map);
}

#endif

const Registered here{"product bf16", "128 x 256 by two consumers, setmaxnreg", ON_GPU(run),
                      Needs::hopper};

}  // namespace
}  // namespace ultrascale::kernels
