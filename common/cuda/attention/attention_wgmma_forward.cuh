// The shared memory of a block of attention_wgmma_forward.cu, and its producer.
#pragma once

#include "attention_wgmma_pieces.cuh"

namespace ultrascale::ops {

template <int D>
struct ForwardShape {
    static constexpr int consumers = D == 64 ? 3 : 2;  // warpgroups of 64 queries
    static constexpr int queries = 64 * consumers, keys = 128;
    static constexpr int slots = D == 64 ? 8 : 5;  // K or V tiles in flight: 16 or 32 KiB each
    static constexpr int threads = 128 * (consumers + 1);
    // Registers per thread after their redistribution; a multiprocessor has 65,536 in all.
    static constexpr int consumer_registers = consumers == 3 ? 160 : 232,
                         producer_registers = consumers == 3 ? 32 : 40;
    // A row of D consists of this many rows of 128 bytes (wgmma.cuh), keys or 64 rows apart.
    static constexpr int parts = D / 64;
};

template <int D>
struct ForwardShared {
    using Shape = ForwardShape<D>;
    Element q[2][Shape::consumers]
             [64 * D];  // (parts, 64, 64): for this tile and the next one; O at the end
    Element kv[Shape::slots][Shape::keys * D];
    Barrier full[Shape::slots], empty[Shape::slots], q_full[2], q_empty[2];
    // The number of the tile whose Q is there; a number past the last tile ends the work.
    int tile[2];
};
static_assert(sizeof(ForwardShared<64>) <= 227 << 10 && sizeof(ForwardShared<128>) <= 227 << 10);

// The queries, and the piece of their keys, that block number `index` of a launch processes.
template <int D>
struct QueryTile : TilePiece {
    int first;
    __device__ QueryTile(const Pieces& pieces, int index)
        : TilePiece(pieces, index),
          first((pieces.order.tiles - 1 - rank) * ForwardShape<D>::queries) {}
    __device__ KeyTiles keys(const DeviceMask& mask, const Pieces& pieces) const {
        constexpr int keys = ForwardShape<D>::keys;
        KeyTiles tiles = key_tiles<ForwardShape<D>::queries, keys>(mask, b, first);
        const int skipped = first_of(tiles.count, pieces.per_tile);
        tiles.count = last_of(tiles.count, pieces.per_tile) - skipped;
        tiles.begin += skipped * keys;
        return tiles;
    }
};

// Runs on one warp, which loads the tiles that the consumers need, in the order in which they need
// them.
template <int D>
__device__ void produce(ForwardShared<D>& shared, const CUtensorMap* q, const CUtensorMap* k,
                        const CUtensorMap* v, const AttentionSizes& s, const DeviceMask& mask,
                        const Pieces& pieces) {
    using Shape = ForwardShape<D>;
    const int lane = int(threadIdx.x) % 32;
    PipelineState<Shape::slots> state;
    PipelineState<2> q_state;
    const auto publish = [&](int index,
                             int bytes) {  // a tile's number, and how many bytes to expect
        barrier_wait(&shared.q_empty[q_state.stage], q_state.parity ^ 1);
        shared.tile[q_state.stage] = index;
        barrier_arrive_expect(&shared.q_full[q_state.stage], bytes);
    };
    for (int index = int(blockIdx.x); index < pieces.count(); q_state.advance()) {
        const QueryTile<D> tile(pieces, index);
        const KeyTiles tiles = tile.keys(mask, pieces);
        if (lane == 0) {
            publish(index, sizeof(shared.q[0]));
            for (int c = 0; c < Shape::consumers; ++c)
                tma_load(shared.q[q_state.stage][c], q, &shared.q_full[q_state.stage], 0,
                         tile.first + 64 * c, tile.h * Shape::parts, tile.b);
            const int kv_part = tile.h / (int(s.H) / int(s.K)) * Shape::parts;
            const auto load = [&](const CUtensorMap* matrix, int i) {
                barrier_wait(&shared.empty[state.stage], state.parity ^ 1);
                barrier_arrive_expect(&shared.full[state.stage], sizeof(shared.kv[0]));
                tma_load(shared.kv[state.stage], matrix, &shared.full[state.stage], 0,
                         tiles.begin + i * Shape::keys, kv_part, tile.b);
                state.advance();
            };
            for (int i = tiles.count - 1; i >= 0; --i) {
                load(k, i);
                if (i + 1 < tiles.count) load(v, i + 1);
            }
            if (tiles.count > 0) load(v, 0);
            index = take_tile(pieces.count());
        }
        index = __shfl_sync(0xffffffffu, index, 0);
    }
    if (lane == 0) publish(pieces.count(), 0);
}

}  // namespace ultrascale::ops
