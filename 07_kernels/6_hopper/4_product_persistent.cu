// A persistent kernel: there are as many blocks as SMs, and each computes one tile after another.
// While the consumers store the sums of a tile, the producer is already filling the ring for the
// next one. Without that, a block has no copies in flight while it stores, and each new block
// begins with an empty ring.
//
//     a block a tile:    [fill][   multiply   ][store][fill][   multiply   ][store]
//     persistent:        [fill][   multiply   ][store][   multiply   ][store]
//         producer:      [copy .................][copy ahead][copy ........]
//
// On an H200, saving the fill alone gains nothing at 4096^3 and 0.4 % at 8192^3: compared with 64
// steps per tile it is short, and the consumers still multiply nothing while they store. But now a
// tile's stores can overlap with the next tile's products, as in 6_product_async_store.cu.
//
// The ring's positions and parities simply continue from tile to tile. Tile i is computed by block
// i % blocks, in the order of tile_at (product.cuh): tiles with neighbouring numbers run at the
// same time and read the same rows of A and B, which are then in L2.
#include "product.cuh"

namespace ultrascale::kernels {
namespace {

#ifndef ULTRASCALE_SIMT

constexpr int tile_rows = 128, tile_columns = 256;
constexpr int stages = 4;     // 48 KiB each
constexpr int under_way = 1;  // steps whose products a consumer leaves in flight
constexpr int consumers = tile_rows / 64, threads = 128 * (consumers + 1);
constexpr int consumer_registers = 232, producer_registers = 40;  // 3_product_two_consumers.cu
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
    const int down = (M + tile_rows - 1) / tile_rows,
              across = (N + tile_columns - 1) / tile_columns, steps = (K + k_step - 1) / k_step;
    const int warpgroup = same_in_warp(int(threadIdx.x) / 32) / 4;
    if (threadIdx.x == 0) {
        tma_prefetch(&A);
        tma_prefetch(&B);
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
            for (int index = int(blockIdx.x); index < down * across; index += int(gridDim.x)) {
                const Tile tile = tile_at(index, down, across, tiles_below);
                for (int step = 0; step < steps; ++step, state.advance()) {
                    Stage& stage = shared.stage[state.stage];
                    Barrier* const full = &shared.full[state.stage];
                    barrier_wait(&shared.empty[state.stage], state.parity ^ 1);
                    barrier_arrive_expect(full, sizeof(Stage));
                    tma_load(stage.a, &A, full, step * k_step, tile.row * tile_rows);
                    tma_load(stage.b, &B, full, step * k_step, tile.column * tile_columns);
                }
            }
    } else {
        registers_more<consumer_registers>();
        PipelineState<stages> to_free;
        const auto free_stage = [&] {
            if (threadIdx.x % 128 == 0) barrier_arrive(&shared.empty[to_free.stage]);
            to_free.advance();
        };
        for (int index = int(blockIdx.x); index < down * across; index += int(gridDim.x)) {
            const Tile tile = tile_at(index, down, across, tiles_below);
            float sum[tile_columns / 8][4];
            for (int step = 0; step < steps; ++step, state.advance()) {
                const Stage& stage = shared.stage[state.stage];
                barrier_wait(&shared.full[state.stage], state.parity);
                wgmma_fence();
#pragma unroll
                for (int k16 = 0; k16 < k_step / 16; ++k16)
                    wgmma(sum, k_major(stage.a + warpgroup * 64 * k_step, k16),
                          k_major(stage.b, k16), step + k16 > 0);
                wgmma_commit();
                wgmma_wait<under_way>(sum);
                if (step >= under_way) free_stage();
            }
            wgmma_wait<0>(sum);
            for (int step = steps < under_way ? steps : under_way; step > 0; --step)
                free_stage();  // the producer continues
            store_sums(C, M, N, tile.row * tile_rows + warpgroup * 64, tile.column * tile_columns,
                       sum);
        }
    }
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const int64_t tiles = ceil_div(M, tile_rows) * ceil_div(N, tile_columns);
    const Operand A(args.in[0], tile_rows), B(args.in[1], tile_columns);
    LAUNCH(product, unsigned(std::min<int64_t>(tiles, multiprocessors())), threads, sizeof(Shared))
    (static_cast<Element*>(args.out.data()), M, N, K, A.map, B.map);
}

#endif

const Registered here{"product bf16", "a block per SM: copies go on while sums are stored",
                      ON_GPU(run), Needs::hopper};

}  // namespace
}  // namespace ultrascale::kernels
