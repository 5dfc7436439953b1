// Clusters: two blocks on neighbouring SMs whose tiles lie below each other need the same 256 rows
// of B. Each asks for half of them, and TMA multicasts the rows that it reads to both: the two
// blocks read 2 x 16 KiB of A and 32 KiB of B from L2 in a step, instead of 96 KiB.
//
//                                    B: rows 0-127   B: rows 128-255
//                                         |               |
//     block 0: asks for its A, B 0-127    +---> both      |          full[s] of each block: 48 KiB
//     block 1: asks for its A, B 128-255                  +---> both  come, whoever asked for them
//
// So stage s of *both* blocks must be free before either asks: empty[s] counts the consumers of
// both, and a consumer arrives at the barrier of each (barrier_arrive_at). A block must exist as
// long as the other may write to it, so they begin and end together.
#include "product.cuh"

namespace ultrascale::kernels {
namespace {

#ifndef ULTRASCALE_SIMT

constexpr int tile_rows = 128, tile_columns = 256;
constexpr int stages = 4;     // 48 KiB each
constexpr int under_way = 1;  // steps whose products a consumer leaves in flight
constexpr int consumers = tile_rows / 64, threads = 128 * (consumers + 1);
constexpr int consumer_registers = 232, producer_registers = 40;  // 3_product_two_consumers.cu
constexpr int cluster = 2;                                        // blocks
constexpr int tiles_below = 16 / cluster;                         // tiles of a cluster
constexpr int b_rows = tile_columns / cluster;                    // rows of B that a block asks for

struct Stage {
    Element a[tile_rows * k_step], b[tile_columns * k_step];
};
struct Shared {
    Stage stage[stages];
    Barrier full[stages], empty[stages];
};

__global__ void CLUSTER(cluster) __launch_bounds__(threads, 1)
    product(Element* C /* (M, N) */, int M, int N, int K,
            const __grid_constant__ CUtensorMap A /* (M, K) */,
            const __grid_constant__ CUtensorMap B /* (N, K) */) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    const int down = (M + cluster * tile_rows - 1) / (cluster * tile_rows),
              across = (N + tile_columns - 1) / tile_columns, steps = (K + k_step - 1) / k_step;
    const int rank = int(cluster_rank()), first = int(blockIdx.x) / cluster,
              clusters = int(gridDim.x) / cluster;
    const int warpgroup = same_in_warp(int(threadIdx.x) / 32) / 4;
    if (threadIdx.x == 0) {
        tma_prefetch(&A);
        tma_prefetch(&B);
        for (int s = 0; s < stages; ++s) {
            barrier_init(&shared.full[s], 1);
            barrier_init(&shared.empty[s], consumers * cluster);
        }
        barrier_init_fence();
    }
    cluster_sync();

    PipelineState<stages> state;
    if (warpgroup == consumers) {
        registers_fewer<producer_registers>();
        if (threadIdx.x % 128 == 0)
            for (int index = first; index < down * across; index += clusters) {
                const Tile tile = tile_at(index, down, across, tiles_below);
                for (int step = 0; step < steps; ++step, state.advance()) {
                    Stage& stage = shared.stage[state.stage];
                    Barrier* const full = &shared.full[state.stage];
                    barrier_wait(&shared.empty[state.stage], state.parity ^ 1);
                    barrier_arrive_expect(full, sizeof(Stage));
                    tma_load(stage.a, &A, full, step * k_step,
                             (tile.row * cluster + rank) * tile_rows);
                    tma_load_multicast(stage.b + rank * b_rows * k_step, &B, full,
                                       (1 << cluster) - 1, step * k_step,
                                       tile.column * tile_columns + rank * b_rows);
                }
            }
    } else {
        registers_more<consumer_registers>();
        PipelineState<stages> to_free;
        const auto free_stage = [&] {
            if (threadIdx.x % 128 < cluster)
                barrier_arrive_at(&shared.empty[to_free.stage],
                                  threadIdx.x % 128);  // one thread per block
            to_free.advance();
        };
        for (int index = first; index < down * across; index += clusters) {
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
                free_stage();  // the producers continue
            store_sums(C, M, N, (tile.row * cluster + rank) * tile_rows + warpgroup * 64,
                       tile.column * tile_columns, sum);
        }
    }
    // The other block arrives at this one's barriers until it has multiplied the tiles that this
    // one sent.
    cluster_sync();
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    static const int most = clusters_at_once(product, cluster, threads, sizeof(Shared));
    const int64_t tiles = ceil_div(M, cluster * tile_rows) * ceil_div(N, tile_columns);
    const Operand A(args.in[0], tile_rows), B(args.in[1], b_rows);
    LAUNCH(product, unsigned(std::min<int64_t>(tiles, most) * cluster), threads, sizeof(Shared))
    (static_cast<Element*>(args.out.data()), M, N, K, A.map, B.map);
}

#endif

const Registered here{"product bf16", "clusters of 2 that share B: multicast", ON_GPU(run),
                      Needs::hopper};

}  // namespace
}  // namespace ultrascale::kernels
