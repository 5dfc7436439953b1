// Tensor cores: a linear layer C = A B^T in bf16, with an instruction that a whole warp executes
// together, mma.sync m16n8k16: 2048 multiply-adds on operands that are spread over its 32 lanes.
// (common/cuda/mma.cuh says which lane holds what, and describes the functions used here.)
//
//     block 128 x 256, 64 of K at a time        warp 64 x 64, 16 of K at a time: 4 x 8 instructions
//                  B: 256 rows of 64 k                      b: 4 loads of ldmatrix, two 16 x 8 each
//              +------+------+------+------+              +--+--+--+--+--+--+--+--+
//     A: 128   |warp 0|warp 1|warp 2|warp 3|      a:  --  |  |  |  |  |  |  |  |  |  128 registers
//     rows of  +------+------+------+------+      4 of    +--+--+--+--+--+--+--+--+  of sums
//     64 k     |warp 4|warp 5|warp 6|warp 7|    ldmatrix  |  |  |  |  |  |  |  |  |  a thread
//              +------+------+------+------+        ...
//
// Tensor cores multiply fifteen times as fast as the other units, and everything else has to keep
// up:
//   - L2 to shared memory: a large tile (85 FLOP per byte), and several stages of copies in
//     flight:
//         step     0         1         2         3
//         stage 0  multiply  copy      |         |
//         stage 1  |         multiply  copy      |
//         stage 2  |         |         multiply  copy
//         stage 3  copy      |         |         multiply
//     In step s the copies for step s + stages - 1 begin, into the stage that step s - 1 has read:
//     a third of them with each of the first three groups of 16 k, so that ldmatrix need not queue
//     behind all of them.
//   - shared memory to registers: 64 x 64 results per warp, 32 mma for 8 ldmatrix; 16-byte chunks
//     are swizzled (mma.cuh), so that the 8 rows that ldmatrix reads at a time, and the 8 chunks of
//     a row that copies write, lie in different banks
//   - registers: the fragments for the next 16 k are loaded while these are multiplied, also across
//     steps: a step's barrier comes before its last 16 k
//   - memory to L2: blocks that run at the same time have neighbouring tiles, 16 below each other
//     (they share rows of B), then the next column. 132 blocks, some 16 x 8 tiles, read about 2048
//     rows of A and as many of B; with 16 tiles side by side it would be 1056 rows of A and all
//     4096 of B.
#ifndef ULTRASCALE_SIMT
#include "cuda/mma.cuh"
#endif
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

#ifndef ULTRASCALE_SIMT

constexpr int tile_rows = 128, tile_columns = 256;  // of C for a block
constexpr int k_step = 64;  // 128 bytes: a row has 8 chunks, which fill the 32 banks
constexpr int warp_tile = 64, threads = 32 * (tile_rows / warp_tile) * (tile_columns / warp_tile);
constexpr int a_tiles = warp_tile / 16,
              b_pairs = warp_tile / 16;  // of 16 rows, of two times 8 columns
constexpr int tiles_below = 16;          // tiles below each other before the next column's

// A stage: 128 rows of A, then 256 of B, k_step of each. Its copies begin in three parts of 128
// rows.
constexpr int part_rows = 128, parts = 3, stage_elements = parts * part_rows * k_step;
static_assert(parts * part_rows == tile_rows + tile_columns && part_rows == tile_rows);
template <int stages>
constexpr size_t shared_bytes = stages* stage_elements * sizeof(Element);

// Begins to copy 128 rows of 64 k, with zeros outside the matrix. 8 threads copy a row's 128 bytes,
// so a thread has every 32nd row. `from` is its first chunk; `rows` and `ks`, counted from there,
// are inside.
template <bool aligned>
__device__ void begin_copy(Element* part, const Element* from, int64_t K, int rows, int ks) {
    const int first = int(threadIdx.x) / 8, chunk = int(threadIdx.x) % 8;
    constexpr int rows_at_once = threads / 8;
#pragma unroll
    for (int r = 0; r < part_rows; r += rows_at_once) {
        Element* to = tile_chunk<k_step>(part, first + r, chunk);
        if constexpr (aligned) {  // K is a multiple of 8: a chunk is inside or outside as a whole
            copy_async(to, from + r * K, r < rows && ks > 0);
        } else {  // rows may begin anywhere, but cp.async needs multiples of 4 bytes
#pragma unroll
            for (int j = 0; j < 8; ++j)
                to[j] = r < rows && j < ks ? from[r * K + j] : __float2bfloat16_rn(0.0f);
        }
    }
}

template <int stages, bool aligned>
__global__ void __launch_bounds__(threads, 1)
    product(Element* C /* (M, N) */, const Element* A /* (M, K) */, const Element* B /* (N, K) */,
            int64_t M, int64_t N, int64_t K) {
    extern __shared__ __align__(128) unsigned char shared[];
    Element* const all_stages = reinterpret_cast<Element*>(shared);

    // This block's tile: groups of `tiles_below` rows of tiles, column by column within a group.
    const int64_t tiles_down = (M + tile_rows - 1) / tile_rows,
                  tiles_across = (N + tile_columns - 1) / tile_columns;
    const int64_t group = blockIdx.x / (tiles_below * tiles_across),
                  in_group = blockIdx.x % (tiles_below * tiles_across);
    const int64_t below =
        min(int64_t(tiles_below), tiles_down - group * tiles_below);  // fewer in the last group
    const int64_t row0 = (group * tiles_below + in_group % below) * tile_rows,
                  column0 = in_group / below * tile_columns;

    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    const int warp_row = warp / (tile_columns / warp_tile) * warp_tile,
              warp_column = warp % (tile_columns / warp_tile) * warp_tile;
    // This thread's first chunks of A and B, and how many rows and k lie inside from there.
    const int copy_row = int(threadIdx.x) / 8, copy_k = int(threadIdx.x) % 8 * 8;
    const Element *a_from = A + (row0 + copy_row) * K + copy_k,
                  *b_from = B + (column0 + copy_row) * K + copy_k;
    const int a_rows = int(min(M - row0, int64_t(tile_rows))) - copy_row,
              b_rows = int(min(N - column0, int64_t(tile_columns))) - copy_row;
    int ks = int(K) - copy_k;
    // Begins to copy a part of the next step; after the last step: zeros.
    const auto begin_part = [&](int part, int stage) {
        Element* to = all_stages + stage * stage_elements + part * part_rows * k_step;
        if (part == 0)
            begin_copy<aligned>(to, a_from, K, a_rows, ks);
        else
            begin_copy<aligned>(to, b_from + (part - 1) * part_rows * K, K,
                                b_rows - (part - 1) * part_rows, ks);
        if (part < parts - 1) return;
        copy_async_commit();
        a_from += k_step, b_from += k_step, ks -= k_step;
    };
    float sum[a_tiles][2 * b_pairs][4] = {};
    uint32_t a[2][a_tiles][4], b[2][b_pairs][4];  // fragments of these 16 k, and of the next
    const auto load_fragments = [&](int which, int stage, int k16) {
        Element *a_stage = all_stages + stage * stage_elements,
                *b_stage = a_stage + tile_rows * k_step;
#pragma unroll
        for (int i = 0; i < a_tiles; ++i)
            load_a<k_step>(a[which][i], a_stage, warp_row + 16 * i, k16);
#pragma unroll
        for (int j = 0; j < b_pairs; ++j)
            load_b_rows<k_step>(b[which][j], b_stage, warp_column + 16 * j, k16);
    };

    for (int s = 0; s < stages - 1; ++s)
        for (int part = 0; part < parts; ++part) begin_part(part, s);
    copy_async_wait<stages - 2>();  // the first of stages - 1 groups is here
    __syncthreads();
    load_fragments(0, 0, 0);
    int stage = 0;
    for (int64_t k0 = 0; k0 < K; k0 += k_step) {
        const int next = stage == stages - 1 ? 0 : stage + 1,
                  before = stage == 0 ? stages - 1 : stage - 1;
#pragma unroll
        for (int k16 = 0; k16 < k_step / 16; ++k16) {
            const bool last = k16 == k_step / 16 - 1;
            if (last) {
                // By now step s has committed groups 0 .. s + stages - 1, and 0 .. s + 1 must have
                // arrived.
                copy_async_wait<stages - 2>();
                // All threads' copies have arrived, and this step's stage has been read: its
                // fragments are all in registers.
                __syncthreads();
            }
            load_fragments((k16 + 1) % 2, last ? next : stage,
                           last ? 0 : k16 + 1);  // unused after the last step
            if (k16 < parts) begin_part(k16, before);
#pragma unroll
            for (int i = 0; i < a_tiles; ++i)
#pragma unroll
                for (int j = 0; j < 2 * b_pairs;
                     ++j) {  // back and forth: at the turn, the tile of B is used twice in a row
                    const int n = i % 2 == 0 ? j : 2 * b_pairs - 1 - j;
                    mma(sum[i][n], a[k16 % 2][i], b[k16 % 2][n / 2][n % 2 * 2],
                        b[k16 % 2][n / 2][n % 2 * 2 + 1]);
                }
        }
        stage = next;
    }
    copy_async_wait<0>();
    __syncthreads();

    const int64_t row = row0 + warp_row, column = column0 + warp_column;
    // Results go through shared memory, where each warp has 8 KiB, so that whole sectors are
    // written.
    if (N % 8 == 0 && column + warp_tile <= N) {
        Element* results = all_stages + warp * warp_tile * warp_tile;
#pragma unroll
        for (int i = 0; i < a_tiles; ++i) store_c<warp_tile>(results, 16 * i, sum[i], 1, 1);
        store_rows<warp_tile, warp_tile>(results, 0, C + column, N, row, M);
    } else {
#pragma unroll
        for (int i = 0; i < a_tiles; ++i)
#pragma unroll
            for (int j = 0; j < 2 * b_pairs; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const int64_t r = row + 16 * i + e / 2 * 8 + lane / 4,
                                  c = column + 8 * j + lane % 4 * 2 + e % 2;
                    if (r < M && c < N) C[r * N + c] = __float2bfloat16_rn(sum[i][j][e]);
                }
    }
}

template <int stages, bool aligned>
void launch(const Arguments& args) {
    const int64_t M = args.size[0], N = args.size[1], K = args.size[2];
    const unsigned blocks = unsigned(ceil_div(M, tile_rows) * ceil_div(N, tile_columns));
    LAUNCH((product<stages, aligned>), blocks, threads, shared_bytes<stages>)
    (static_cast<Element*>(args.out.data()), static_cast<const Element*>(args.in[0].data()),
     static_cast<const Element*>(args.in[1].data()), M, N, K);
}

void run(const Arguments& args) {
    const int64_t shared = shared_memory_per_block();
    if (args.size[2] % 8 != 0)
        launch<2, false>(args);
    else if (shared >= int64_t(shared_bytes<4>))  // Hopper
        launch<4, true>(args);
    else if (shared >= int64_t(shared_bytes<3>))  // A100
        launch<3, true>(args);
    else
        launch<2, true>(args);
}

#endif

const Registered here{"product bf16", "mma.sync, ldmatrix, 4 stages of cp.async", ON_GPU(run)};

}  // namespace
}  // namespace ultrascale::kernels
