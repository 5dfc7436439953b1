// The shared memory of a block of attention_wgmma_backward.cu, its producer, and the consumer's
// computations in registers between its products.
#pragma once

#include "attention_wgmma_pieces.cuh"
#include "attention_wgmma_sums.cuh"

namespace ultrascale::ops {

// The keys, and the piece of their queries, that block number `index` of a launch processes.
struct KeyTile : TilePiece {
    int first;
    __device__ KeyTile(const Pieces& pieces, int index)
        : TilePiece(pieces, index), first(rank * backward_keys) {}
};

template <int D>
struct BackwardShape {
    static constexpr int consumers = backward_keys / 64;  // warpgroups of 64 keys
    static constexpr int keys = backward_keys, queries = backward_queries(D);
    static constexpr int stages = 3;  // tiles of queries in flight, 32 KiB each
    static constexpr int threads = 128 * (consumers + 1);
    static constexpr int consumer_registers = 240, producer_registers = 24;
    // A row of D consists of this many rows of 128 bytes (wgmma.cuh).
    static constexpr int parts = D / 64;
};

template <int D>
struct BackwardShared {
    using Shape = BackwardShape<D>;
    Element k[Shape::consumers][64 * D], v[Shape::consumers][64 * D];  // (parts, 64, 64)
    Element q[Shape::stages][Shape::queries * D],
        dout[Shape::stages][Shape::queries * D];        // (parts, queries, 64)
    Element ds[Shape::consumers][64 * Shape::queries];  // (queries / 64, 64 keys, 64)
    int outgoing[4 * Shape::consumers][dq_of_warp];     // each warp's part of dQ; at the end dK, dV
    BackwardRows<D> rows[Shape::stages];
    Barrier full[Shape::stages], empty[Shape::stages], kv_full, kv_empty, ds_ready, ds_free;
    // The number of the tile whose K and V are there, and of the previous one, in alternating
    // places; a number past the last tile ends the work.
    int tile[2];
};
static_assert(sizeof(BackwardShared<64>) <= 227 << 10 && sizeof(BackwardShared<128>) <= 227 << 10);

template <int D>
__device__ void init_barriers(BackwardShared<D>& shared) {
    using Shape = BackwardShape<D>;
    constexpr int warps = 4 * Shape::consumers;
    for (int i = 0; i < Shape::stages; ++i) {
        barrier_init(&shared.full[i], 1);
        barrier_init(&shared.empty[i], warps);
    }
    barrier_init(&shared.kv_full, 1);
    for (Barrier* barrier : {&shared.kv_empty, &shared.ds_ready, &shared.ds_free})
        barrier_init(barrier, warps);
    barrier_init_fence();
}

// This thread's number in its warpgroup, read anew each time: otherwise the compiler would keep
// values that depend on it in registers through all loops.
__device__ inline unsigned thread_here() {
    unsigned thread = threadIdx.x;
    SM90A("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread % 128;
}

__device__ inline bool first_lane() { return thread_here() % 32 == 0; }

// The number that is added to dQ's sums: x y rounded to an integer, plus rounded_zero. If |x y| is
// below 2^22, adding 1.5 2^23, whose last bit is worth 1, is enough; a larger x y sets bits from
// 2^23 on in `too_large`. A conversion instruction would be slow, since it runs on the special
// function unit.
__device__ inline int quick_round(float x, float y, int& too_large) {
    const int bits = __float_as_int(fmaf(x, y, __int_as_float(rounded_zero)));
    too_large |= bits ^ rounded_zero;
    return bits;
}
__device__ inline int slow_round(float x) { return __float2int_rn(x) + rounded_zero; }

// Writes a warp's 16 rows of a part of dQ as such integers to `state`, multiplied by one factor for
// this thread's row g and another for row g + 8 (mma.cuh).
__device__ inline void round_dq(int* state, const float (&part)[8][4], float low, float high) {
    int4* const to = reinterpret_cast<int4*>(state) + thread_here() % 32;
    int too_large = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j)
        to[j * 32] = {
            quick_round(part[j][0], low, too_large), quick_round(part[j][1], low, too_large),
            quick_round(part[j][2], high, too_large), quick_round(part[j][3], high, too_large)};
    if (__any_sync(0xffffffffu, uint32_t(too_large) >> 23))
#pragma unroll
        for (int j = 0; j < 8; ++j)
            to[j * 32] = {slow_round(part[j][0] * low), slow_round(part[j][1] * low),
                          slow_round(part[j][2] * high), slow_round(part[j][3] * high)};
}

// Masks the keys of S^T that its queries do not see. key and key + 8 are this thread's rows, first
// and first + 1 its columns of each tile; key_end is that of BackwardRows.
template <int D>
__device__ void hide_unseen(float (&score)[backward_queries(D) / 8][4], const BackwardRows<D>& rows,
                            int key, int first, int key_end, const DeviceMask& mask) {
#pragma unroll
    for (int j = 0; j < backward_queries(D) / 8; ++j)
#pragma unroll
        for (int e = 0; e < 4; ++e) {
            const int column = 8 * j + first + e % 2, its_key = key + e / 2 * 8;
            if (its_key < rows.begin[column] ||
                its_key >= min(max(key_end + column, mask.prefix), int(mask.Tk)))
                score[j][e] = -INFINITY;
        }
}

// Turns dP into dS = P (dP - delta). P is packed as the products need it; delta belongs to this
// thread's columns, in the order of BackwardRows.
template <int tiles>
__device__ void to_ds(float (&dp)[tiles][4], const uint32_t (&p)[tiles / 2][4],
                      const float (&delta)[tiles / 2][4]) {
#pragma unroll
    for (int kk = 0; kk < tiles / 2; ++kk)
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t both = p[kk][i / 2];
            float& x = dp[2 * kk + i / 4][i % 4];
            x = __uint_as_float(i % 2 == 0 ? both << 16 : both & 0xffff0000u) *
                (x - delta[kk][i / 4 * 2 + i % 2]);
        }
}

// A step's position in the rings. It counts to twice the number of stages, which determines all
// parities as well.
template <int stages>
struct StepState {
    int n = 0;
    __device__ int stage() const { return n < stages ? n : n - stages; }
    __device__ int stage_before() const { return stage() == 0 ? stages - 1 : stage() - 1; }
    __device__ uint32_t parity() const { return n < stages ? 0 : 1; }
    // The parity in a ring with one stage; the previous step has the other parity.
    __device__ uint32_t step_parity() const { return uint32_t(n) % 2; }
    __device__ void advance() { n = n + 1 == 2 * stages ? 0 : n + 1; }
};

// Iterates over a piece's tiles of queries, among those that see any of the keys: first those of
// the group's first head, then of the second, ...
template <int queries>
struct QueryTiles {
    int begin, end, count;  // tiles: of each head begin .. end - 1 see the keys; in this piece
    int head, number;       // of the current tile; heads are numbered across all sequences
    __device__ QueryTiles(const DeviceMask& mask, const AttentionSizes& s, const KeyTile& keys,
                          const Pieces& pieces) {
        const int group = int(s.H) / int(s.K);
        begin = first_query_tile(keys.first, queries, mask);
        end = (mask.query_end(keys.b, keys.first + backward_keys) + queries - 1) / queries;
        const int seen = max(end - begin, 0), all = seen * group;
        const int skipped = keys.first_of(all, pieces.per_tile);
        count = keys.last_of(all, pieces.per_tile) - skipped;
        head = (keys.b * int(s.K) + keys.h) * group + skipped / max(seen, 1),
        number = begin + skipped % max(seen, 1);
    }
    __device__ void advance() {
        if (++number == end) number = begin, ++head;
    }
    // The tile's place in OpenTiles, with `stride` tiles from one head to the next.
    __device__ int index(int stride) const { return head * stride + number; }
};

// Runs on one thread, which loads the tiles that the consumers need, in the order in which they
// need them.
template <int D>
__device__ void produce(BackwardShared<D>& shared, const OpenTiles<D>& open, const CUtensorMap* q,
                        const CUtensorMap* dout, const CUtensorMap* k, const CUtensorMap* v,
                        const AttentionSizes& s, const DeviceMask& mask, const Pieces& pieces) {
    using Shape = BackwardShape<D>;
    PipelineState<Shape::stages> state;
    PipelineState<1> kv_state;
    // Publishes a tile's number, and how many bytes to expect.
    const auto publish = [&](int index, int bytes) {
        barrier_wait(&shared.kv_empty, kv_state.parity ^ 1);
        shared.tile[kv_state.parity] = index;
        barrier_arrive_expect(&shared.kv_full, bytes);
        kv_state.advance();
    };
    for (int index = int(blockIdx.x); index < pieces.count(); index = take_tile(pieces.count())) {
        const KeyTile tile(pieces, index);
        QueryTiles<Shape::queries> tiles(mask, s, tile, pieces);
        const auto load_queries = [&] {
            Barrier* const full = &shared.full[state.stage];
            const int part = (tiles.head - tile.b * int(s.H)) * Shape::parts;
            barrier_wait(&shared.empty[state.stage], state.parity ^ 1);
            barrier_arrive_expect(
                full, sizeof(shared.q[0]) + sizeof(shared.dout[0]) + sizeof(shared.rows[0]));
            tma_load(shared.q[state.stage], q, full, 0, tiles.number * Shape::queries, part,
                     tile.b);
            tma_load(shared.dout[state.stage], dout, full, 0, tiles.number * Shape::queries, part,
                     tile.b);
            bulk_load(&shared.rows[state.stage], &open.rows[tiles.index(open.head_stride)], full,
                      sizeof(shared.rows[0]));
            tiles.advance(), state.advance();
        };
        if (tiles.count > 0) load_queries();  // while the previous tile still needs its K and V
        publish(index, sizeof(shared.k) + sizeof(shared.v));
        for (int c = 0; c < Shape::consumers; ++c) {
            tma_load(shared.k[c], k, &shared.kv_full, 0, tile.first + 64 * c, tile.h * Shape::parts,
                     tile.b);
            tma_load(shared.v[c], v, &shared.kv_full, 0, tile.first + 64 * c, tile.h * Shape::parts,
                     tile.b);
        }
        for (int i = 1; i < tiles.count; ++i) load_queries();
    }
    publish(pieces.count(), 0);
}

}  // namespace ultrascale::ops
