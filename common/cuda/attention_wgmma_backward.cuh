// What a block of attention_wgmma_backward.cu shares, and its producer.
#pragma once

#include "attention_wgmma_sums.cuh"

namespace ultrascale::ops {

template <int D>
struct BackwardShape {
    static constexpr int consumers = 2;  // warpgroups of 64 keys
    static constexpr int keys = 64 * consumers, queries = backward_queries(D);
    static constexpr int stages = 3;  // tiles of queries under way, 32 KiB each
    static constexpr int threads = 128 * (consumers + 1);
    static constexpr int consumer_registers = 240, producer_registers = 24;
    static constexpr int parts = D / 64;  // a row of D is this many rows of 128 bytes (wgmma.cuh)
};

template <int D>
struct BackwardShared {
    using Shape = BackwardShape<D>;
    Element k[Shape::consumers][64 * D], v[Shape::consumers][64 * D];                       // (parts, 64, 64)
    Element q[Shape::stages][Shape::queries * D], dout[Shape::stages][Shape::queries * D];  // (parts, queries, 64)
    Element ds[Shape::consumers][64 * Shape::queries];                                      // (queries / 64, 64 keys, 64)
    int outgoing[4 * Shape::consumers][dq_of_warp];                                         // each warp's part of dQ; at the end dK, dV
    BackwardRows<D> rows[Shape::stages];
    Barrier full[Shape::stages], empty[Shape::stages], kv_full, kv_empty, ds_ready, ds_free;
    int tile;  // which one has its K and V there; past the last one: there are no more
};
static_assert(sizeof(BackwardShared<64>) <= 227 << 10 && sizeof(BackwardShared<128>) <= 227 << 10);

// This thread's number in its warpgroup, read anew: what is computed from it would else be held in registers through all loops.
__device__ inline unsigned thread_here() {
    unsigned thread = threadIdx.x;
    SM90A("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread % 128;
}

// x y, if it is below 2^22, rounded to an integer: in the float with round_shift added, units are the last bit. Conversions are slow, as
// the special function unit makes them. What is larger sets bits from 2^23 on in `too_large`.
constexpr float round_shift = 12582912;  // 1.5 2^23
constexpr int round_shift_bits = 0x4b400000;
__device__ inline int quick_round(float x, float y, int& too_large) {
    const int bits = __float_as_int(fmaf(x, y, round_shift));
    too_large |= bits ^ round_shift_bits;
    return bits - round_shift_bits;
}

// A step's place in the rings: it counts to twice the stages, and so tells all parities too.
template <int stages>
struct StepPlace {
    int n = 0;
    __device__ int stage() const { return n < stages ? n : n - stages; }
    __device__ int stage_before() const { return stage() == 0 ? stages - 1 : stage() - 1; }
    __device__ uint32_t parity() const { return n < stages ? 0 : 1; }
    __device__ uint32_t step_parity() const { return uint32_t(n) % 2; }  // of a ring of one; the step before has the other one
    __device__ void advance() { n = n + 1 == 2 * stages ? 0 : n + 1; }
};

// The tiles of queries that see any of the keys from `first` on: those of the first head of the group, then of the second, ...
template <int queries>
struct QueryTiles {
    int begin, of_head, count;  // tiles: the first one, all of a head, and those that see the keys, of the whole group
    int head, number;           // of this one
    __device__ QueryTiles(const DeviceMask& mask, const AttentionSizes& s, int kv_head, int first) {
        const int group = int(s.H) / int(s.K);
        of_head = (int(s.Tq) + queries - 1) / queries;
        begin = number = int(min(mask.first_query(first), s.Tq)) / queries;
        count = max(of_head - begin, 0) * group;
        head = kv_head * group;
    }
    __device__ void advance() {
        if (++number == of_head) number = begin, ++head;
    }
    // Among those of all sequences and heads.
    __device__ int index(int b, int heads) const { return (b * heads + head) * of_head + number; }
};

// One thread: it asks for what the consumers need, in the order in which they need it.
template <int D>
__device__ void produce(BackwardShared<D>& shared, const BackwardRows<D>* rows, const CUtensorMap* q, const CUtensorMap* dout,
                        const CUtensorMap* k, const CUtensorMap* v, const AttentionSizes& s, const DeviceMask& mask,
                        const TileOrder& order) {
    using Shape = BackwardShape<D>;
    RingPlace<Shape::stages> place;
    RingPlace<1> kv_place;
    const auto publish = [&](int index, int bytes) {  // a tile's number, and that so many bytes come
        barrier_wait(&shared.kv_empty, kv_place.parity ^ 1);
        shared.tile = index;
        barrier_arrive_expect(&shared.kv_full, bytes);
        kv_place.advance();
    };
    for (int index = int(blockIdx.x); index < order.count(); index = take_tile(order.count())) {
        const Tile tile = order.at(index);
        const int first = tile.rank * Shape::keys;
        QueryTiles<Shape::queries> tiles(mask, s, tile.h, first);
        const auto load_queries = [&] {
            Barrier* const full = &shared.full[place.stage];
            barrier_wait(&shared.empty[place.stage], place.parity ^ 1);
            barrier_arrive_expect(full, sizeof(shared.q[0]) + sizeof(shared.dout[0]) + sizeof(shared.rows[0]));
            tma_load(shared.q[place.stage], q, full, 0, tiles.number * Shape::queries, tiles.head * Shape::parts, tile.b);
            tma_load(shared.dout[place.stage], dout, full, 0, tiles.number * Shape::queries, tiles.head * Shape::parts, tile.b);
            bulk_load(&shared.rows[place.stage], &rows[tiles.index(tile.b, int(s.H))], full, sizeof(shared.rows[0]));
            tiles.advance(), place.advance();
        };
        if (tiles.count > 0) load_queries();  // while the tile before still needs its K and V
        publish(index, sizeof(shared.k) + sizeof(shared.v));
        for (int c = 0; c < Shape::consumers; ++c) {
            tma_load(shared.k[c], k, &shared.kv_full, 0, first + 64 * c, tile.h * Shape::parts, tile.b);
            tma_load(shared.v[c], v, &shared.kv_full, 0, first + 64 * c, tile.h * Shape::parts, tile.b);
        }
        for (int i = 1; i < tiles.count; ++i) load_queries();
    }
    publish(order.count(), 0);
}

}  // namespace ultrascale::ops
