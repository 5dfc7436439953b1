// Results leave through the copy engine as well, and later. When a tile's sums are complete, a warp
// only rounds them to bf16, so that they need half as many registers and can stay there, and begins
// the next tile. At each of that tile's first steps, when its products have been issued, it stores
// 64 columns in shared memory (stmatrix: four 8 x 8 matrices in one instruction), and one thread
// asks TMA to write the 16 x 64 to C. So the tensor cores do not wait for stores (LaterStore in
// cuda/product_tiles.cuh).
//
//     tile 1's products          | tile 2's products
//     sums 16 x 256 -- round ----> registers: 4 x (16 x 64)
//                                  step 0: columns   0 .. --> box 0 (swizzled) -- tma_store --> C
//                                  step 1: columns  64 .. --> box 1      whole rows of 128 bytes
//                                  step 2: columns 128 .. --> box 0, once TMA has read it
//                                  step 3: columns 192 .. --> box 1
//
// In the previous kernels each thread stores 4 bytes at a time, and an instruction only 16
// neighbouring bytes per row. TMA skips elements outside C, but requires rows that begin at
// multiples of 16 bytes: if N is not a multiple of 8, sums are stored as in the previous kernels.
//
// Every other tile of a block goes through K backwards: it begins with the last k, which the tiles
// before it, in neighbouring blocks too, have just read, so that L2 still has them.
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
constexpr int boxes = 2;  // of C, for each warp
struct Shared {
    Stage stage[stages];
    Element box[4 * consumers][boxes][box_rows * box_columns];
    Barrier full[stages], empty[stages];
};

__global__ void CLUSTER(cluster) __launch_bounds__(threads, 1)
    product(Element* C /* (M, N) */, int M, int N, int K,
            const __grid_constant__ CUtensorMap A /* (M, K) */,
            const __grid_constant__ CUtensorMap B /* (N, K) */,
            const __grid_constant__ CUtensorMap C_map /* where N % 8 == 0 */) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    const int down = (M + cluster * tile_rows - 1) / (cluster * tile_rows),
              across = (N + tile_columns - 1) / tile_columns, steps = (K + k_step - 1) / k_step;
    const int rank = int(cluster_rank()), first = int(blockIdx.x) / cluster,
              clusters = int(gridDim.x) / cluster;
    const int warp = same_in_warp(int(threadIdx.x) / 32), warpgroup = warp / 4;
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
                const bool backwards = index / clusters % 2 == 1;
                for (int step = 0; step < steps; ++step, state.advance()) {
                    Stage& stage = shared.stage[state.stage];
                    Barrier* const full = &shared.full[state.stage];
                    const int k = (backwards ? steps - 1 - step : step) * k_step;
                    barrier_wait(&shared.empty[state.stage], state.parity ^ 1);
                    barrier_arrive_expect(full, sizeof(Stage));
                    tma_load(stage.a, &A, full, k, (tile.row * cluster + rank) * tile_rows);
                    tma_load_multicast(stage.b + rank * b_rows * k_step, &B, full,
                                       (1 << cluster) - 1, k,
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
        LaterStore<tile_columns / 8> later;
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
                later.at_step(step, &C_map, shared.box[warp]);  // 64 columns of the tile before
                wgmma_wait<under_way>(sum);
                if (step >= under_way) free_stage();
            }
            wgmma_wait<0>(sum);
            later.finish(steps, &C_map, shared.box[warp]);  // what is left, if K has few steps
            for (int step = steps < under_way ? steps : under_way; step > 0; --step)
                free_stage();  // the producers continue
            const int row0 = (tile.row * cluster + rank) * tile_rows + warpgroup * 64,
                      column0 = tile.column * tile_columns;
            if (N % 8 == 0)
                later.keep(sum, row0 + warp % 4 * box_rows, column0);
            else
                store_sums(C, M, N, row0, column0, sum);
        }
        later.finish(0, &C_map, shared.box[warp]);  // of the last tile
        if (threadIdx.x % 32 == 0)
            tma_store_wait_read<0>();  // TMA must have read the boxes before the block ends
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
    (static_cast<Element*>(args.out.data()), M, N, K, A.map, B.map, result_map(args.out));
}

#endif

const Registered here{"product bf16", "stmatrix; TMA stores during the next products", ON_GPU(run),
                      Needs::hopper};

}  // namespace
}  // namespace ultrascale::kernels
