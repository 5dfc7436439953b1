// The product in fp8 with scales for tiles and blocks, with which DeepSeek-V3 was trained. It is
// for Hopper, and is the pipeline of 07_kernels/6_hopper/7_product_fp8.cu, whose sums leave the
// tensor cores after every 128 of k. 07_kernels/6_hopper/8_product_fp8_blocks.cu explains why, and
// what it costs.
//
//                        A (M, K)                 B (N, K)                  sum += scale P
//     forward, input     x, dy: tiles 1 x 128     W: blocks 128 x 128       s(row) t(128 columns)
//     weight             dy^T:  tiles 1 x 128     x^T: tiles 1 x 128        s(row) t(column)
//
// P is what tensor cores sum over 128 of k. A thread has two rows of it, and two of every 8
// columns. The scales of its rows, and of blocks, are loaded to registers a step ahead; those of
// columns come with the tiles, through the copy engine, because no thread has registers for 64 of
// them.
//
// Results leave through the copy engine, too, which also adds to a weight's gradient in fp32.
#include "cuda/clusters.cuh"
#include "cuda/ops_common.cuh"
#include "cuda/product_tiles.cuh"
#include "fp8_blocks.h"

namespace ultrascale::ops {

namespace {

constexpr int tile_rows = 128, tile_columns = 256;
constexpr int block = 128;  // k that share a scale, and columns of B; also k in a tile's row
constexpr int parts = tile_columns / block;  // parts of a tile, one after the other through P
constexpr int stages = 4;
constexpr int consumers = tile_rows / 64, threads = 128 * (consumers + 1);
constexpr int consumer_registers = 232, producer_registers = 40;
constexpr int cluster = 2;                      // blocks
constexpr int tiles_below = 16 / cluster;       // tiles of a cluster
constexpr int b_rows = tile_columns / cluster;  // rows of B that a block asks for

struct Tiles {  // two fp8 in an element
    Element a[tile_rows * 64], b[tile_columns * 64];
};
template <bool b_tiles>
struct Shared {
    Tiles stage[stages];
    // TMA stores a box only from a multiple of 128 bytes, so boxes come before the scales. Each
    // warp has boxes for its result: only one if the columns' scales need the room.
    Element box[4 * consumers][b_tiles ? 1 : 2][box_rows * box_columns];
    float scale[stages][b_tiles ? tile_columns : 4];  // of B's columns
    Barrier full[stages], empty[stages];
};

struct Sizes {
    int M, N, K, b_scale_stride;
};

// One step's scales that a thread needs: of its two rows of A, and of each part's 128 columns.
struct Scales {
    float a[2], b[parts];
};

// Stores a warp's 16 x 256 sums (+ addend, unless null) from (row, column) to the matrix's edge.
template <class D>
__device__ void store_sums(D* out, const D* addend, int64_t M, int64_t N, int64_t row,
                           int64_t column, const float (&sum)[tile_columns / 8][4]) {
    const int lane = int(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        const int64_t here = row + 8 * half + lane / 4, first = column + lane % 4 * 2;
        if (here >= M) continue;
        D* const to = out + here * N + first;
        const D* const more = addend + here * N + first;
#pragma unroll
        for (int j = 0; j < tile_columns / 8; ++j) {
            const float two[2] = {sum[j][2 * half], sum[j][2 * half + 1]};
            if (first + 8 * j >= N) break;
            if (N % 2 == 0) {
                Pack<D, 2> pair;
                if (addend) pair = load<2>(more + 8 * j);
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    pair.x[i] = from_float<D>(addend ? to_float(pair.x[i]) + two[i] : two[i]);
                store(to + 8 * j, pair);
            } else {
                for (int i = 0; i < 2 && first + 8 * j + i < N; ++i)
                    to[8 * j + i] =
                        from_float<D>(addend ? to_float(more[8 * j + i]) + two[i] : two[i]);
            }
        }
    }
    __syncwarp();  // lanes part at M and N; the next product needs the warp together
}

template <bool b_tiles, bool a_e5m2, class D>
__global__ void CLUSTER(cluster) __launch_bounds__(threads, 1)
    product(D* out, const D* addend, const Sizes s,
            const __grid_constant__ CUtensorMap A /* (M, K) */,
            const __grid_constant__ CUtensorMap B /* (N, K) */,
            const __grid_constant__ CUtensorMap C, const float* __restrict__ scales_a,
            const float* __restrict__ scales_b) {
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared<b_tiles>& shared = *reinterpret_cast<Shared<b_tiles>*>(bytes);
    const int M = s.M, N = s.N;
    const int down = (M + cluster * tile_rows - 1) / (cluster * tile_rows),
              across = (N + tile_columns - 1) / tile_columns, steps = (s.K + block - 1) / block;
    const int rank = int(cluster_rank()), first = int(blockIdx.x) / cluster,
              clusters = int(gridDim.x) / cluster;
    const int warp = same_in_warp(int(threadIdx.x) / 32), warpgroup = warp / 4;
    if (threadIdx.x == 0) {
        tma_prefetch(&A);
        tma_prefetch(&B);
        for (int i = 0; i < stages; ++i) {
            barrier_init(&shared.full[i], 1);
            barrier_init(&shared.empty[i], consumers * cluster);
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
                const int column = tile.column * tile_columns;
                const int scale_bytes =
                    b_tiles ? min(tile_columns, N - column) * int(sizeof(float)) : 0;
                for (int step = 0; step < steps; ++step, state.advance()) {
                    Tiles& to = shared.stage[state.stage];
                    Barrier* const full = &shared.full[state.stage];
                    barrier_wait(&shared.empty[state.stage], state.parity ^ 1);
                    barrier_arrive_expect(full, int(sizeof(Tiles)) + scale_bytes);
                    tma_load(to.a, &A, full, step * block, (tile.row * cluster + rank) * tile_rows);
                    tma_load_multicast(to.b + rank * b_rows * 64, &B, full, (1 << cluster) - 1,
                                       step * block, column + rank * b_rows);
                    if (b_tiles)
                        bulk_load(shared.scale[state.stage], scales_b + int64_t(step) * N + column,
                                  full, scale_bytes);
                }
            }
    } else {
        registers_more<consumer_registers>();
        for (int index = first; index < down * across; index += clusters) {
            const Tile tile = tile_at(index, down, across, tiles_below);
            const int row0 = (tile.row * cluster + rank) * tile_rows + warpgroup * 64,
                      column0 = tile.column * tile_columns;
            const int row = row0 + warp % 4 * 16 + int(threadIdx.x) % 32 / 4;  // and row + 8
            const auto scales_of = [&](int step) {  // rows outside the result take any scale
                Scales all = {};
#pragma unroll
                for (int i = 0; i < 2; ++i)
                    all.a[i] = scales_a[int64_t(step) * M + min(row + 8 * i, M - 1)];
                if constexpr (!b_tiles)
#pragma unroll
                    for (int i = 0; i < parts; ++i)
                        all.b[i] = scales_b[int64_t(min(column0 + i * block, N - 1) / block) *
                                                s.b_scale_stride +
                                            step];
                return all;
            };
            float sum[tile_columns / 8][4] = {};
            Scales next = scales_of(0);
            for (int step = 0; step < steps; ++step, state.advance()) {
                const Tiles& tiles = shared.stage[state.stage];
                const Scales scales = next;
                next = scales_of(min(step + 1, steps - 1));
                barrier_wait(&shared.full[state.stage], state.parity);
                const auto free_stage = [&] {
                    if (threadIdx.x % 128 < cluster)  // one thread per block
                        barrier_arrive_at(&shared.empty[state.stage], threadIdx.x % 128);
                };
#pragma unroll
                for (int part = 0; part < parts; ++part) {
                    float P[block / 8][4];
                    wgmma_fence();
#pragma unroll
                    for (int k32 = 0; k32 < block / 32; ++k32)
                        wgmma_fp8<a_e5m2>(P, k_major(tiles.a + warpgroup * 64 * 64, k32),
                                          k_major(tiles.b + part * block * 64, k32), k32 > 0);
                    wgmma_commit();
                    wgmma_wait<0>(P);
                    if (!b_tiles && part == parts - 1) free_stage();
                    const float* const columns =
                        shared.scale[state.stage] + part * block + threadIdx.x % 4 * 2;
#pragma unroll
                    for (int j = 0; j < block / 8; ++j) {
                        Pack<float, 2> column_scales = {{scales.b[part], scales.b[part]}};
                        if constexpr (b_tiles) column_scales = load<2>(columns + 8 * j);
#pragma unroll
                        for (int i = 0; i < 4; ++i)
                            sum[part * block / 8 + j][i] +=
                                scales.a[i / 2] * column_scales.x[i % 2] * P[j][i];
                    }
                }
                if constexpr (b_tiles) {  // all threads have read the columns' scales
                    sync_some<128>(1 + warpgroup);
                    free_stage();
                }
            }
            const int warp_row = row0 + warp % 4 * box_rows;
            if constexpr (std::is_same_v<D, Element>) {
                if (!addend && N % 8 == 0) {
                    store_through_boxes(&C, warp_row, column0, shared.box[warp], sum);
                    continue;
                }
            } else if ((!addend || addend == out) && N % 4 == 0) {
                store_through_boxes(&C, addend != nullptr, 0, warp_row, column0, shared.box[warp],
                                    sum);
                continue;
            }
            store_sums(out, addend, M, N, warp_row, column0, sum);
        }
        if (threadIdx.x % 32 == 0)
            tma_store_wait_read<0>();  // TMA must have read the boxes before the block ends
    }
    // The other block arrives at this one's barriers until it has multiplied what this one sent.
    cluster_sync();
}

template <bool b_tiles, bool a_e5m2, class D>
void start(const Tensor& d, const Fp8Blocks& p, const Tensor& addend) {
    const auto kernel = product<b_tiles, a_e5m2, D>;
    constexpr size_t bytes = sizeof(Shared<b_tiles>);
    static const int most = clusters_at_once(kernel, cluster, threads, bytes);
    const int64_t tiles = ceil_div(p.M, cluster * tile_rows) * ceil_div(p.N, tile_columns);
    const auto map = [&](const void* x, int64_t rows, int64_t stride, int box) {
        return tensor_map(x, {{p.K, 1, block}, {rows, stride, box}});
    };
    const CUtensorMap C = std::is_same_v<D, float> ? sums_map(d) : result_map(d);
    LAUNCH(kernel, unsigned(std::min<int64_t>(tiles, most) * cluster), threads, bytes)
    (data<D>(d), addend ? data<D>(addend) : nullptr,
     Sizes{int(p.M), int(p.N), int(p.K), int(p.b_scale_stride)},
     map(p.a, p.M, p.a_stride, tile_rows), map(p.b, p.N, p.b_stride, b_rows), C, p.scales_a,
     p.scales_b);
}

}  // namespace

void fp8_blocks_wgmma(const Tensor& d, const Fp8Blocks& p, bool b_tiles, const Tensor& addend) {
    check(std::max({p.M, p.N, p.K}) < int64_t(1) << 30, "fp8 blocks: a matrix is too large");
    const auto with = [&]<class D>(D) {
        if (b_tiles)
            p.a_e5m2 ? start<true, true, D>(d, p, addend) : start<true, false, D>(d, p, addend);
        else
            p.a_e5m2 ? start<false, true, D>(d, p, addend) : start<false, false, D>(d, p, addend);
    };
    check(d.dtype() == DType::fp32 || d.dtype() == DType::bf16, "fp8 blocks: d is fp32 or bf16");
    d.dtype() == DType::fp32 ? with(float{}) : with(Element{});
}

}  // namespace ultrascale::ops
