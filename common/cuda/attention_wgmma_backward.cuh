// What a block of attention_wgmma_backward.cu shares, and its producers.
#pragma once

#include "attention_wgmma_sums.cuh"

namespace ultrascale::ops {

template <int D>
struct BackwardShape {
    static constexpr int consumers = 2;  // warpgroups of 64 keys
    static constexpr int keys = 64 * consumers, queries = D == 64 ? 128 : 64;
    static constexpr int stages = 3;  // tiles of queries under way, 32 KiB each
    static constexpr int threads = 128 * (consumers + 1);
    static constexpr int consumer_registers = 240, producer_registers = 24;
    static constexpr int parts = D / 64;  // a row of D is this many rows of 128 bytes (wgmma.cuh)
};

template <int queries>
struct alignas(8) BackwardRows {  // of a tile of queries; two neighbours are read at once
    float log2_sum[queries], delta[queries], factor[queries];
    int begin[queries];          // of the documents, as keys
    int highest_begin, key_end;  // where the keys that the first query sees end; behind it one more for each query, if causal, up to Tk
    int dq_tile;                 // of the sums, the first part
};
template <int D>
struct BackwardShared {
    Element k[BackwardShape<D>::consumers][64 * D], v[BackwardShape<D>::consumers][64 * D];  // (parts, 64, 64); at the end dK, dV
    Element q[BackwardShape<D>::stages][BackwardShape<D>::queries * D],
        dout[BackwardShape<D>::stages][BackwardShape<D>::queries * D];        // (parts, queries, 64)
    Element ds[BackwardShape<D>::consumers][64 * BackwardShape<D>::queries];  // (queries / 64, 64 keys, 64)
    int dq[4 * BackwardShape<D>::consumers][dq_of_warp];
    BackwardRows<BackwardShape<D>::queries> rows[BackwardShape<D>::stages];
    Barrier full[BackwardShape<D>::stages], empty[BackwardShape<D>::stages], kv_full, kv_empty, ds_free;
    int tile;  // which one has its K and V there; past the last one: there are no more
};
static_assert(sizeof(BackwardShared<64>) <= 227 << 10 && sizeof(BackwardShared<128>) <= 227 << 10);

// This thread's number in its warpgroup, found anew: what is computed from it would else be held in registers through all loops.
__device__ inline int thread_here() {
    int thread = int(threadIdx.x) % 128;
    asm volatile("" : "+r"(thread));
    return thread;
}

// The tiles of queries that see any of the keys from `first` on: those of the first head of the group, then of the second, ...
template <int queries>
struct QueryTiles {
    int begin, end, count, head, query;  // of all tiles; of this one
    __device__ QueryTiles(const DeviceMask& mask, const AttentionSizes& s, int kv_head, int first) {
        const int group = int(s.H) / int(s.K);
        begin = query = int(min(mask.first_query(first), s.Tq)) / queries * queries, end = int(s.Tq), head = kv_head * group;
        count = (end - begin + queries - 1) / queries * group;
    }
    __device__ void advance() {
        query += queries;
        if (query >= end) query = begin, ++head;
    }
};

// One thread: it asks for what the consumers need, in the order in which they need it.
template <int D>
__device__ void produce(BackwardShared<D>& shared, const CUtensorMap* q, const CUtensorMap* dout, const CUtensorMap* k,
                        const CUtensorMap* v, const AttentionSizes& s, const DeviceMask& mask, const TileOrder& order) {
    using Shape = BackwardShape<D>;
    RingPlace<Shape::stages> place;
    RingPlace<1> kv_place;
    const auto publish = [&](int index, int bytes) {  // a tile's number, and that so many bytes come
        barrier_wait(&shared.kv_empty, kv_place.parity ^ 1);
        shared.tile = index;
        barrier_arrive_expect(&shared.kv_full, bytes);
    };
    for (int index = int(blockIdx.x); index < order.count(); index = take_tile(order.count()), kv_place.advance()) {
        const Tile tile = order.at(index);
        const int first = tile.rank * Shape::keys;
        QueryTiles<Shape::queries> tiles(mask, s, tile.h, first);
        publish(index, sizeof(shared.k) + sizeof(shared.v));
        for (int c = 0; c < Shape::consumers; ++c) {
            tma_load(shared.k[c], k, &shared.kv_full, 0, first + 64 * c, tile.h * Shape::parts, tile.b);
            tma_load(shared.v[c], v, &shared.kv_full, 0, first + 64 * c, tile.h * Shape::parts, tile.b);
        }
        for (int i = 0; i < tiles.count; ++i, tiles.advance(), place.advance()) {
            Barrier* const full = &shared.full[place.stage];
            barrier_wait(&shared.empty[place.stage], place.parity ^ 1);
            barrier_arrive_expect(full, sizeof(shared.q[0]) + sizeof(shared.dout[0]));
            tma_load(shared.q[place.stage], q, full, 0, tiles.query, tiles.head * Shape::parts, tile.b);
            tma_load(shared.dout[place.stage], dout, full, 0, tiles.query, tiles.head * Shape::parts, tile.b);
        }
    }
    publish(order.count(), 0);
}

// One warp: the rows' log-sum-exp, delta, factors of dQ and documents.
template <int D>
__device__ void produce_rows(BackwardShared<D>& shared, const float* lse, const float* delta, const DqSums& sums, const AttentionSizes& s,
                             const DeviceMask& mask, const TileOrder& order) {
    using Shape = BackwardShape<D>;
    const int lane = int(threadIdx.x) % 32;
    RingPlace<Shape::stages> place;
    RingPlace<1> kv_place;
    for (;; kv_place.advance()) {
        barrier_wait(&shared.kv_full, kv_place.parity);
        const int index = shared.tile;
        if (index >= order.count()) break;
        const Tile tile = order.at(index);
        QueryTiles<Shape::queries> tiles(mask, s, tile.h, tile.rank * Shape::keys);
        for (int i = 0; i < tiles.count; ++i, tiles.advance(), place.advance()) {
            BackwardRows<Shape::queries>& rows = shared.rows[place.stage];
            barrier_wait(&shared.empty[place.stage], place.parity ^ 1);
            int highest = 0;
#pragma unroll 1  // a producer has few registers
            for (int row = lane; row < Shape::queries; row += 32) {
                const int query = min(tiles.query + row, tiles.end - 1);
                const bool valid = query == tiles.query + row;  // behind the last one Q and dO are zero, and so is all that comes of them
                const int64_t at = (int64_t(tile.b) * s.H + tiles.head) * s.Tq + query;
                const int begin = mask.starts ? mask.starts[tile.b * s.Tq + query] - int(mask.k_offset) : 0;
                rows.log2_sum[row] = valid ? log2_sum_of(lse[at]) : 0;
                rows.delta[row] = valid ? delta[at] : 0;
                rows.factor[row] = sums.factors[at];
                rows.begin[row] = begin;
                highest = max(highest, begin);
            }
            highest = __reduce_max_sync(0xffffffffu, highest);
            if (lane == 0) {
                const int64_t key_end = min(max(mask.shift + tiles.query + 1, int64_t(-Shape::queries)), mask.Tk);
                rows.highest_begin = highest, rows.key_end = int(mask.causal ? key_end : mask.Tk);
                rows.dq_tile = ((tile.b * int(s.H) + tiles.head) * sums.tiles + tiles.query / 64) * Shape::parts;
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(&shared.full[place.stage]);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.kv_empty);  // the tile's number has been read
    }
}

}  // namespace ultrascale::ops
