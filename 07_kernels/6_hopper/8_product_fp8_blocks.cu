// The product in fp8 as DeepSeek-V3 was trained with it: a scale for each 1 x 128 of A (128
// features of one token) and for each 128 x 128 of B (weights). A number that is far larger than
// the others then costs precision only in its own block; with one scale per matrix, all others
// would be rounded in steps that fit this number. And tensor cores add up no more than 128 k.
//
//     A  1 x 128 blocks                  B  128 x 128 blocks             for each 128 of K:
//     row 0  [ s00 ][ s01 ][ s02 ]       [  t00  ][  t01  ]              P   = the 128 k's products
//     row 1  [ s10 ][ s11 ][ s12 ]       [  t10  ][  t11  ]              sum += s t P
//
// Tensor cores sum P; CUDA cores add s t P, in fp32: the "promotion".
//
// Why promotion: what tensor cores lose of a product grows with the sum that they add it to
// (7_product_fp8.cu). P stays small, so for any K only 1.3e-4 of it is lost, or 6e-4 if all
// products have one sign. And the scales cost nothing: the promotion is a multiply-add anyway.
//
// What it costs: registers for P besides the sums. 64 x 256 of both would be 256 per thread, so P
// is 64 x 128: two halves, one after the other (128 + 64 registers). And while a warpgroup
// promotes, it has no products in flight, so the other one must have some.
//
//     tensor cores  | 0: P left  | 1: P left  | 0: P right | 1: P right | 0: P left
//     consumer 0    |   waits    |promote|....|   waits    |promote|....|
//     consumer 1    |promote|....|   waits    |promote|....|   waits    |
//
// A P takes the tensor cores 256 cycles; promoting it takes 64 multiply-adds per thread, some 100
// cycles. "....": the consumer has asked for its next P, which has to wait.
//
// The two consumers come to alternate by themselves: the one whose products come second promotes
// later. Scales are loaded from memory to registers a step before they are needed. Everything else
// is as in 7_product_fp8.cu.
//
// DeepSeek-AI et al. 2024, DeepSeek-V3 Technical Report, section 3.3.2;
// github.com/deepseek-ai/DeepGEMM.
#include "product.cuh"

namespace ultrascale::kernels {
namespace {

#ifndef ULTRASCALE_SIMT

constexpr int tile_rows = 128, tile_columns = 256;
constexpr int block =
    128;  // k, and columns of B, that share a scale; also k in a tile's row of 128 bytes
constexpr int parts = tile_columns / block;  // of a tile, one after the other through P
constexpr int stages = 4;                    // 48 KiB each
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

// The scales of one step that a thread needs: of its two rows of A, and of each part's 128 columns.
struct Scales {
    float a[2], b[parts];
};

__global__ void CLUSTER(cluster) __launch_bounds__(threads, 1)
    product(Element* C /* (M, N) */, int M, int N, int K,
            const __grid_constant__ CUtensorMap A /* (M, K) */,
            const __grid_constant__ CUtensorMap B /* (N, K) */,
            const __grid_constant__ CUtensorMap C_map /* where N % 8 == 0 */,
            const float* __restrict__ scales_a /* (K / 128, M) */,
            const float* __restrict__ scales_b /* (N / 128, b_stride) */, int b_stride) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared& shared = *reinterpret_cast<Shared*>(bytes);
    const int down = (M + cluster * tile_rows - 1) / (cluster * tile_rows),
              across = (N + tile_columns - 1) / tile_columns, steps = (K + block - 1) / block;
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

    RingPlace<stages> place;
    if (warpgroup == consumers) {
        registers_fewer<producer_registers>();
        if (threadIdx.x % 128 == 0)
            for (int index = first; index < down * across; index += clusters) {
                const Tile tile = tile_at(index, down, across, tiles_below);
                for (int step = 0; step < steps; ++step, place.advance()) {
                    Stage& stage = shared.stage[place.stage];
                    Barrier* const full = &shared.full[place.stage];
                    barrier_wait(&shared.empty[place.stage], place.parity ^ 1);
                    barrier_arrive_expect(full, sizeof(Stage));
                    tma_load(stage.a, &A, full, step * block,
                             (tile.row * cluster + rank) * tile_rows);
                    tma_load_multicast(stage.b + rank * b_rows * 64, &B, full, (1 << cluster) - 1,
                                       step * block, tile.column * tile_columns + rank * b_rows);
                }
            }
    } else {
        registers_more<consumer_registers>();
        for (int index = first; index < down * across; index += clusters) {
            const Tile tile = tile_at(index, down, across, tiles_below);
            const int row0 = (tile.row * cluster + rank) * tile_rows + warpgroup * 64,
                      column0 = tile.column * tile_columns;
            const int row = row0 + warp % 4 * 16 + int(threadIdx.x) % 32 / 4;  // and row + 8
            const auto scales_of = [&](int step) {  // rows outside C take any scale
                Scales s;
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    s.a[i] = scales_a[int64_t(step) * M + min(row + 8 * i, M - 1)];
#pragma unroll
                for (int i = 0; i < parts; ++i)
                    s.b[i] = scales_b[int64_t(min(column0 + i * block, N - 1) / block) * b_stride +
                                      step];
                return s;
            };
            float sum[tile_columns / 8][4] = {};
            Scales next = scales_of(0);
            for (int step = 0; step < steps; ++step, place.advance()) {
                const Stage& stage = shared.stage[place.stage];
                const Scales scales = next;
                next = scales_of(min(step + 1, steps - 1));
                barrier_wait(&shared.full[place.stage], place.parity);
#pragma unroll
                for (int part = 0; part < parts; ++part) {
                    float P[block / 8][4];
                    wgmma_fence();
#pragma unroll
                    for (int k32 = 0; k32 < block / 32; ++k32)
                        wgmma_e4m3(P, k_major(stage.a + warpgroup * 64 * 64, k32),
                                   k_major(stage.b + part * block * 64, k32), k32 > 0);
                    wgmma_commit();
                    wgmma_wait<0>(P);
                    if (part == parts - 1 && threadIdx.x % 128 < cluster)  // one thread per block
                        barrier_arrive_at(&shared.empty[place.stage], threadIdx.x % 128);
#pragma unroll
                    for (int j = 0; j < block / 8; ++j)
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            sum[part * block / 8 + j][i] +=
                                scales.a[i / 2] * scales.b[part] * P[j][i];
                }
            }
            if (N % 8 == 0)
                store_through_boxes(&C_map, row0 + warp % 4 * box_rows, column0, shared.box[warp],
                                    sum);
            else
                store_sums(C, M, N, row0, column0, sum);
        }
        if (threadIdx.x % 32 == 0)
            tma_store_wait_read<0>();  // TMA must have read the boxes before the block ends
    }
    // The other block arrives at this one's barriers until it has multiplied what this one sent.
    cluster_sync();
}

void run(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    static const int most = clusters_at_once(product, cluster, threads, sizeof(Shared));
    const int64_t tiles = ceil_div(M, cluster * tile_rows) * ceil_div(N, tile_columns);
    LAUNCH(product, unsigned(std::min<int64_t>(tiles, most) * cluster), threads, sizeof(Shared))
    (static_cast<Element*>(args.out.data()), M, N, K, e4m3_map(args.in[0], K, tile_rows),
     e4m3_map(args.in[1], K, b_rows), result_map(args.out),
     static_cast<const float*>(args.in[2].data()), static_cast<const float*>(args.in[3].data()),
     args.in[3].cols());
}

#endif

const Registered here{"product fp8 blocks", "scales for blocks; sums of 128 k promoted to fp32",
                      ON_GPU(run), Needs::hopper};

}  // namespace
}  // namespace ultrascale::kernels
