// The backward's first half for Hopper: dK and dV, bf16, head dimension 64 or 128. Why there are two halves, and formulas:
// attention_mma_backward_keys.cu; who waits for whom: attention_wgmma_forward.cu, except that nobody takes turns.
//
// A consumer has 64 keys, with K and V in shared memory and the sums dK and dV in registers, and walks over the queries that see them, 64
// at a time. It computes S^T = K Q^T and dP^T = V dO^T, with keys as rows: then P^T and dS^T are where the next products want them, in
// registers. What a warpgroup has asked for, and what it computes meanwhile:
//
//     tensor cores     S1 | dP1        | dV += P1 dO1 | dK += dS1 Q1 | S2 | dP2 ...       and between them the other warpgroup's
//     this warpgroup      | P1 ....... | dS1 ....                         | P2 ...
//
// The producer has two warps: one asks TMA for K, V, Q and dO, the other one brings the rows' log-sum-exp and delta, which begin at any
// address. Query heads that share a key head are added up. FLOPs 8 Tq Tk D a head, half of it causal.
#include "attention_wgmma.cuh"

namespace ultrascale::ops {

namespace {

template <int D>
struct Shape {
    static constexpr int consumers = 2;  // warpgroups of 64 keys
    static constexpr int keys = 64 * consumers, queries = 64;
    static constexpr int stages = D == 64 ? 6 : 3;  // tiles of queries under way, 16 or 32 KiB each
    static constexpr int threads = 128 * (consumers + 1);
    static constexpr int consumer_registers = D == 64 ? 232 : 240, producer_registers = D == 64 ? 40 : 24;
    static constexpr int parts = D / 64;  // a row of D is this many rows of 128 bytes (wgmma.cuh), 64 rows apart
};

struct alignas(8) Rows {  // of a tile of queries; two neighbours are read at once
    float log2_sum[64], delta[64];
    int begin[64];  // of the documents, as keys
    int highest_begin;
};
template <int D>
struct Shared {
    Element k[2][Shape<D>::consumers][64 * D], v[2][Shape<D>::consumers][64 * D];  // this tile's and the next one's; at the end dK, dV
    Element q[Shape<D>::stages][64 * D], dout[Shape<D>::stages][64 * D];           // all (parts, 64, 64)
    Rows rows[Shape<D>::stages];
    Barrier full[Shape<D>::stages], empty[Shape<D>::stages], kv_full[2], kv_empty[2];
    int tile[2];  // which one has its K and V there; past the last one: there are no more
};
static_assert(sizeof(Shared<64>) <= 227 << 10 && sizeof(Shared<128>) <= 227 << 10);

// The tiles of queries that see any of the keys from `first` on: those of the first head of the group, then of the second, ...
struct QueryTiles {
    int begin, end, count, head, query;  // of all tiles; of this one
    __device__ QueryTiles(const DeviceMask& mask, const AttentionSizes& s, int kv_head, int first) {
        const int group = int(s.H) / int(s.K);
        begin = query = int(min(mask.first_query(first), s.Tq)) / 64 * 64, end = int(s.Tq), head = kv_head * group;
        count = (end - begin + 63) / 64 * group;
    }
    __device__ void advance() {
        query += 64;
        if (query >= end) query = begin, ++head;
    }
};

// One thread: it asks for what the consumers need, in the order in which they need it.
template <int D>
__device__ void produce(Shared<D>& shared, const CUtensorMap* q, const CUtensorMap* dout, const CUtensorMap* k, const CUtensorMap* v,
                        const AttentionSizes& s, const DeviceMask& mask, const TileOrder& order) {
    using Shape = Shape<D>;
    RingPlace<Shape::stages> place;
    RingPlace<2> kv_place;
    const auto publish = [&](int index, int bytes) {  // a tile's number, and that so many bytes come
        barrier_wait(&shared.kv_empty[kv_place.stage], kv_place.parity ^ 1);
        shared.tile[kv_place.stage] = index;
        barrier_arrive_expect(&shared.kv_full[kv_place.stage], bytes);
    };
    for (int index = int(blockIdx.x); index < order.count(); index = take_tile(order.count()), kv_place.advance()) {
        const Tile tile = order.at(index);
        const int first = tile.rank * Shape::keys;
        QueryTiles tiles(mask, s, tile.h, first);
        publish(index, sizeof(shared.k[0]) + sizeof(shared.v[0]));
        for (int c = 0; c < Shape::consumers; ++c) {
            tma_load(shared.k[kv_place.stage][c], k, &shared.kv_full[kv_place.stage], 0, first + 64 * c, tile.h * Shape::parts, tile.b);
            tma_load(shared.v[kv_place.stage][c], v, &shared.kv_full[kv_place.stage], 0, first + 64 * c, tile.h * Shape::parts, tile.b);
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

// One warp: the rows' log-sum-exp, delta and documents. A lane has two rows, and reads the next tile's ahead.
template <int D>
__device__ void produce_rows(Shared<D>& shared, const float* lse, const float* delta, const AttentionSizes& s, const DeviceMask& mask,
                             const TileOrder& order) {
    using Shape = Shape<D>;
    const int lane = int(threadIdx.x) % 32;
    RingPlace<Shape::stages> place;
    RingPlace<2> kv_place;
    for (;; kv_place.advance()) {
        barrier_wait(&shared.kv_full[kv_place.stage], kv_place.parity);
        const int index = shared.tile[kv_place.stage];
        if (index >= order.count()) break;
        const Tile tile = order.at(index);
        QueryTiles tiles(mask, s, tile.h, tile.rank * Shape::keys);
        float next_lse[2], next_delta[2];
        const auto read = [&] {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int query = tiles.query + lane + 32 * r;
                const bool valid = query < tiles.end;  // behind the last one Q and dO are zero, and so is all that comes of them
                const int64_t at = (int64_t(tile.b) * s.H + tiles.head) * s.Tq + query;
                next_lse[r] = valid ? lse[at] : 0, next_delta[r] = valid ? delta[at] : 0;
            }
        };
        if (tiles.count > 0) read();
        for (int i = 0; i < tiles.count; ++i, place.advance()) {
            Rows& rows = shared.rows[place.stage];
            barrier_wait(&shared.empty[place.stage], place.parity ^ 1);
            int highest = 0;
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                const int row = lane + 32 * r, query = min(tiles.query + row, tiles.end - 1);
                const int begin = mask.starts ? mask.starts[tile.b * s.Tq + query] - int(mask.k_offset) : 0;
                rows.log2_sum[row] = log2_sum_of(next_lse[r]), rows.delta[row] = next_delta[r], rows.begin[row] = begin;
                highest = max(highest, begin);
            }
            highest = __reduce_max_sync(0xffffffffu, highest);
            if (lane == 0) rows.highest_begin = highest;
            __syncwarp();
            if (lane == 0) barrier_arrive(&shared.full[place.stage]);
            tiles.advance();
            if (i + 1 < tiles.count) read();
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.kv_empty[kv_place.stage]);  // the tile's number has been read
    }
}

// One warpgroup, number `consumer`: keys 64 consumer .. 64 consumer + 63 of each tile.
template <int D>
__device__ void consume(Shared<D>& shared, int consumer, const CUtensorMap* dk, const CUtensorMap* dv, const AttentionSizes& s,
                        const DeviceMask& mask, const TileOrder& order) {
    using Shape = Shape<D>;
    constexpr int queries = Shape::queries;
    const int warp = int(threadIdx.x) / 32 % 4, lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const bool leader = threadIdx.x % 128 == 0;  // asks TMA to store, and waits for it
    const float factor = s.scale() * log2_e;

    RingPlace<Shape::stages> place;
    RingPlace<2> kv_place;
    const auto release = [&](int stage) { lane == 0 ? barrier_arrive(&shared.empty[stage]) : void(); };
    bool stored = false;  // a tile before this one, whose place is not free yet
    const auto free_place = [&] {
        if (stored && leader) tma_store_wait_read<0>(), barrier_arrive(&shared.kv_empty[kv_place.stage ^ 1]);
        stored = false;
    };
    for (;; kv_place.advance()) {
        barrier_wait(&shared.kv_full[kv_place.stage], kv_place.parity);
        const int index = shared.tile[kv_place.stage];
        if (index >= order.count()) break;
        Element *const k = shared.k[kv_place.stage][consumer], *const v = shared.v[kv_place.stage][consumer];
        const Tile tile = order.at(index);
        const int first_of_tile = tile.rank * Shape::keys, first = first_of_tile + 64 * consumer, key = first + 16 * warp + g;
        QueryTiles tiles(mask, s, tile.h, first_of_tile);

        float p[queries / 8][4], dp[queries / 8][4], dk_sum[D / 8][4] = {}, dv_sum[D / 8][4] = {};  // p: S first
        uint32_t p_a[queries / 16][4] = {}, ds_a[queries / 16][4] = {};
        const auto begin_product = [&](float(&sum)[queries / 8][4], const Element* a, const Element* b) {  // A B^T, over D
            const uint64_t a0 = k_major(a, 0), b0 = k_major(b, 0);
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk)
                wgmma(sum, further(a0, kk / 4 * 64 * 64 + kk % 4 * 16), further(b0, kk / 4 * 64 * 64 + kk % 4 * 16), kk > 0);
            wgmma_commit();
        };
        const auto begin_sum = [&](float(&sum)[D / 8][4], const uint32_t(&a)[queries / 16][4], const Element* b) {  // += A B, over queries
            const uint64_t b0 = mn_major(b, 0, queries);
            wgmma_fence();
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk) wgmma<Major::mn>(sum, a[kk], further(b0, kk * 16 * 64), true);
            wgmma_commit();
        };
        int last_stage = -1;  // which the sums under way read
        for (int i = 0; i < tiles.count; ++i, tiles.advance()) {
            const RingPlace at = place;
            place.advance();
            const Rows& rows = shared.rows[at.stage];
            barrier_wait(&shared.full[at.stage], at.parity);
            if (mask.key_end(tiles.query + queries - 1) <= first) {  // these queries come before these keys
                __syncwarp();                                        // a lane that came late would miss the phase
                release(at.stage);
                continue;
            }
            wgmma_fence();
            begin_product(p, k, shared.q[at.stage]);
            begin_product(dp, v, shared.dout[at.stage]);
            wgmma_wait<1>(p);  // and for all that was begun before
            hold(ds_a);
            if (last_stage >= 0) release(last_stage);
            last_stage = at.stage;
            if (rows.highest_begin > first || mask.key_end(tiles.query) < first + 64)
#pragma unroll
                for (int j = 0; j < queries / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int column = 8 * j + 2 * t + e % 2, its_key = key + e / 2 * 8;
                        if (its_key < rows.begin[column] || its_key >= mask.key_end(tiles.query + column)) p[j][e] = -INFINITY;
                    }
#pragma unroll
            for (int j = 0; j < queries / 8; ++j) {
                const float2 log2_sum = *reinterpret_cast<const float2*>(rows.log2_sum + 8 * j + 2 * t);
#pragma unroll
                for (int e = 0; e < 4; ++e) p[j][e] = exp2_fast(p[j][e] * factor - (e % 2 == 0 ? log2_sum.x : log2_sum.y));
            }
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk) as_a(p_a[kk], p[2 * kk], p[2 * kk + 1]);
            begin_sum(dv_sum, p_a, shared.dout[at.stage]);
            wgmma_wait<1>(dp);
#pragma unroll
            for (int j = 0; j < queries / 8; ++j) {
                const float2 delta = *reinterpret_cast<const float2*>(rows.delta + 8 * j + 2 * t);
#pragma unroll
                for (int e = 0; e < 4; ++e) p[j][e] *= dp[j][e] - (e % 2 == 0 ? delta.x : delta.y);
            }
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk) as_a(ds_a[kk], p[2 * kk], p[2 * kk + 1]);
            begin_sum(dk_sum, ds_a, shared.q[at.stage]);
            wgmma_wait<1>(dv_sum);  // while dK is under way: P's registers are needed for the next S
            hold(p_a);
            free_place();  // TMA has long read the tile before: its place is free for the K and V of the tile after this one
        }
        free_place();
        wgmma_wait<0>(dk_sum);
        hold(ds_a);
        if (last_stage >= 0) release(last_stage);

        sync_some<128>(1 + consumer);  // all four warps' products have read K and V
        store_fragments<D>(k, dk_sum, s.scale(), s.scale());
        store_fragments<D>(v, dv_sum, 1, 1);
        fence_async_proxy();
        sync_some<128>(1 + consumer);
        if (leader) {
            tma_store(dk, k, 0, first, tile.h * Shape::parts, tile.b);  // not the rows from Tk on
            tma_store(dv, v, 0, first, tile.h * Shape::parts, tile.b);
            tma_store_commit();
        }
        stored = true;
    }
    if (leader) tma_store_wait_read<0>();  // a block that has ended has no shared memory
}

template <int D>
__global__ void __launch_bounds__(Shape<D>::threads, 1)
    backward_keys(const float* lse, const float* delta, const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap dout,
                  const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap dk,
                  const __grid_constant__ CUtensorMap dv, AttentionSizes s, DeviceMask mask, TileOrder order) {
    using Shape = Shape<D>;
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared<D>& shared = *reinterpret_cast<Shared<D>*>(bytes);
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shape::stages; ++i) {
            barrier_init(&shared.full[i], 2);                      // the two producers
            barrier_init(&shared.empty[i], 4 * Shape::consumers);  // warps
        }
        for (int i = 0; i < 2; ++i) {
            barrier_init(&shared.kv_full[i], 1);
            barrier_init(&shared.kv_empty[i], Shape::consumers + 1);  // and who brings the rows
        }
        barrier_init_fence();
    }
    __syncthreads();
    const int warpgroup = __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0);  // the compiler sees that a warp has one
    if (warpgroup == Shape::consumers) {
        registers_fewer<Shape::producer_registers>();
        const int thread = int(threadIdx.x) % 128;
        if (thread == 0) produce<D>(shared, &q, &dout, &k, &v, s, mask, order);
        if (thread / 32 == 1) produce_rows<D>(shared, lse, delta, s, mask, order);
    } else {
        registers_more<Shape::consumer_registers>();
        consume<D>(shared, warpgroup, &dk, &dv, s, mask, order);
    }
}

template <int D>
void launch(const Tensor& dk, const Tensor& dv, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse,
            const Tensor& delta, const AttentionSizes& s, const DeviceMask& mask) {
    using Shape = Shape<D>;
    const TileOrder order = tile_order(s.B, s.K, ceil_div(s.Tk, Shape::keys), 4 * s.Tq * s.D * s.group());
    LAUNCH(backward_keys<D>, unsigned(std::min(order.count(), multiprocessors())), Shape::threads, sizeof(Shared<D>))
    (data<float>(lse), data<float>(delta), head_map<D>(q, 64), head_map<D>(dout, 64), head_map<D>(k, 64), head_map<D>(v, 64),
     head_map<D>(dk, 64), head_map<D>(dv, 64), s, mask, order);
}

}  // namespace

void attention_backward_keys_wgmma(const Tensor& dk, const Tensor& dv, const Tensor& dout, const Tensor& q, const Tensor& k,
                                   const Tensor& v, const Tensor& lse, const Tensor& delta, const AttentionSizes& s,
                                   const DeviceMask& mask) {
    (s.D == 64 ? launch<64> : launch<128>)(dk, dv, dout, q, k, v, lse, delta, s, mask);
}

}  // namespace ultrascale::ops
