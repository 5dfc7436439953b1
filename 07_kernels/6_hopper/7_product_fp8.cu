// The product in fp8: e4m3 numbers (1 sign, 4 exponent and 3 mantissa bits) and a scale for each
// matrix. A row of 128 bytes has 128 k, and wgmma takes 32 of them where it took 16: the same
// kernel moves the same bytes and does twice the products in the same time.
//
//     A, B   fp8, up to 448: a matrix divided by its scale
//     C      scale_a scale_b sum, rounded to bf16
//     sums   fp32 registers, but less exact than fp32: each time, 32 products and the sum before
//            them are shifted to the exponent of the largest, and what is 14 bits or more behind
//            its leading one is cut off:
//
//            sum       1.0110100111010 |                     a sum that has grown: the last bits of
//            product   0.0000000011011 | 101  <- cut off     products are lost, and of those that
//                                                            are less than 2^-13 of it all
//
// With products of both signs the losses have both signs, too: 1.3e-3 of a typical sum of K = 4096
// (standard normal numbers, computed as pictured). With products of one sign they add up to 7 % of
// the sum. This is cuBLAS's "fast accumulation"; 8_product_fp8_blocks.cu avoids the loss.
//
// DeepSeek-AI et al. 2024, DeepSeek-V3 Technical Report, section 3.3.2 (reports errors of nearly 2
// % at most, for two random matrices with K = 4096).
#include "product.cuh"

namespace ultrascale::kernels {
namespace {

#ifndef ULTRASCALE_SIMT

constexpr int tile_rows = 128, tile_columns = 256;
constexpr int step_k = 128;   // k in a tile's row of 128 bytes
constexpr int stages = 4;     // 48 KiB each
constexpr int under_way = 1;  // steps whose products a consumer leaves in flight
constexpr int consumers = tile_rows / 64, threads = 128 * (consumers + 1);
constexpr int consumer_registers = 232, producer_registers = 40;  // 3_product_two_consumers.cu
constexpr int cluster = 2;                                        // blocks
constexpr int tiles_below = 16 / cluster;                         // tiles of a cluster
constexpr int b_rows = tile_columns / cluster;                    // rows of B that a block asks for

struct Stage {
    Element a[tile_rows * 64], b[tile_columns * 64];  // two fp8 in an element
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
            const __grid_constant__ CUtensorMap C_map /* where N % 8 == 0 */,
            const float* scale_a /* (1) */, const float* scale_b /* (1) */) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    const int down = (M + cluster * tile_rows - 1) / (cluster * tile_rows),
              across = (N + tile_columns - 1) / tile_columns, steps = (K + step_k - 1) / step_k;
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
                for (int step = 0; step < steps; ++step, state.advance()) {
                    Stage& stage = shared.stage[state.stage];
                    Barrier* const full = &shared.full[state.stage];
                    barrier_wait(&shared.empty[state.stage], state.parity ^ 1);
                    barrier_arrive_expect(full, sizeof(Stage));
                    tma_load(stage.a, &A, full, step * step_k,
                             (tile.row * cluster + rank) * tile_rows);
                    tma_load_multicast(stage.b + rank * b_rows * 64, &B, full, (1 << cluster) - 1,
                                       step * step_k, tile.column * tile_columns + rank * b_rows);
                }
            }
    } else {
        registers_more<consumer_registers>();
        const float scale = *scale_a * *scale_b;
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
                for (int k32 = 0; k32 < step_k / 32; ++k32)
                    wgmma_fp8(sum, k_major(stage.a + warpgroup * 64 * 64, k32),
                              k_major(stage.b, k32), step + k32 > 0);
                wgmma_commit();
                wgmma_wait<under_way>(sum);
                if (step >= under_way) free_stage();
            }
            wgmma_wait<0>(sum);
            for (int step = steps < under_way ? steps : under_way; step > 0; --step)
                free_stage();  // the producers continue
#pragma unroll
            for (auto& four : sum)
                for (float& s : four) s *= scale;
            const int row0 = (tile.row * cluster + rank) * tile_rows + warpgroup * 64,
                      column0 = tile.column * tile_columns;
            if (N % 8 == 0)
                store_through_boxes(&C_map, row0 + warp % 4 * box_rows, column0, shared.box[warp],
                                    sum);
            else
                store_sums(C, M, N, row0, column0, sum);
        }
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
    LAUNCH(product, unsigned(std::min<int64_t>(tiles, most) * cluster), threads, sizeof(Shared))
    (static_cast<Element*>(args.out.data()), M, N, K, e4m3_map(args.in[0], K, tile_rows),
     e4m3_map(args.in[1], K, b_rows), result_map(args.out),
     static_cast<const float*>(args.in[2].data()), static_cast<const float*>(args.in[3].data()));
}

#endif

const Registered here{"product fp8", "the same in fp8, one scale per matrix", ON_GPU(run),
                      Needs::hopper};

}  // namespace
}  // namespace ultrascale::kernels
