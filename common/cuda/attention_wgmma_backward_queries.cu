// The backward's second half for Hopper: dQ = scale dS K, bf16, head dimension 64 or 128. Why there are two halves, and formulas:
// attention_mma_backward_keys.cu; who waits for whom: attention_wgmma_forward.cu, except that nobody takes turns.
//
// A consumer has 64 queries, whose Q and dO it keeps in registers, so each product reads only one operand from shared memory. In each
// round it asks for S = Q K^T and dP = dO V^T of the next 64 keys and behind them for dQ += dS K of these, and makes the next dS while
// that last one is under way:
//
//     tensor cores     S1 dP1 | dQ += dS0 K0 | S2 dP2 | dQ += dS1 K1 | ...       and between them the other warpgroups'
//     this warpgroup          | dS1 .......  |        | dS2 .......  |
//
// FLOPs 6 Tq Tk D a head, half of it causal.
#include "attention_wgmma.cuh"

namespace ultrascale::ops {

namespace {

template <int D>
struct Shape {
    static constexpr int consumers = 2;  // warpgroups of 64 queries
    static constexpr int queries = 64 * consumers, keys = 64;
    static constexpr int slots = D == 64 ? 16 : 8;  // K or V tiles under way: 8 or 16 KiB each
    static constexpr int threads = 128 * (consumers + 1);
    static constexpr int consumer_registers = D == 64 ? 232 : 240, producer_registers = D == 64 ? 40 : 24;
    static constexpr int parts = D / 64;  // a row of D is this many rows of 128 bytes (wgmma.cuh), 64 rows apart
};

template <int D>
struct Shared {
    Element q[Shape<D>::consumers][64 * D], dout[Shape<D>::consumers][64 * D], dq[Shape<D>::consumers][64 * D];  // (parts, 64, 64)
    Element kv[Shape<D>::slots][Shape<D>::keys * D];
    Barrier full[Shape<D>::slots], empty[Shape<D>::slots], q_full, q_empty;
    int tile;  // which one has its Q and dO there; past the last one: there are no more
};
static_assert(sizeof(Shared<64>) <= 227 << 10 && sizeof(Shared<128>) <= 227 << 10);

// One warp: it loads what the consumers need, in the order in which they need it.
template <int D>
__device__ void produce(Shared<D>& shared, const CUtensorMap* q, const CUtensorMap* dout, const CUtensorMap* k, const CUtensorMap* v,
                        const AttentionSizes& s, const DeviceMask& mask, const TileOrder& order) {
    using Shape = Shape<D>;
    const int lane = int(threadIdx.x) % 32;
    RingPlace<Shape::slots> place;
    RingPlace<1> q_place;
    const auto publish = [&](int index, int bytes) {  // a tile's number, and that so many bytes come
        barrier_wait(&shared.q_empty, q_place.parity ^ 1);
        shared.tile = index;
        barrier_arrive_expect(&shared.q_full, bytes);
    };
    for (int index = int(blockIdx.x); index < order.count(); q_place.advance()) {
        const Tile tile = order.at(index);
        const int first = (order.tiles - 1 - tile.rank) * Shape::queries;
        const KeyTiles tiles = key_tiles<Shape::queries, Shape::keys>(mask, tile.b, first);
        if (lane == 0) {
            publish(index, sizeof(shared.q) + sizeof(shared.dout));
            for (int c = 0; c < Shape::consumers; ++c) {
                tma_load(shared.q[c], q, &shared.q_full, 0, first + 64 * c, tile.h * Shape::parts, tile.b);
                tma_load(shared.dout[c], dout, &shared.q_full, 0, first + 64 * c, tile.h * Shape::parts, tile.b);
            }
            const int kv_part = tile.h / (int(s.H) / int(s.K)) * Shape::parts;
            const auto load = [&](const CUtensorMap* matrix, int i) {
                barrier_wait(&shared.empty[place.stage], place.parity ^ 1);
                barrier_arrive_expect(&shared.full[place.stage], sizeof(shared.kv[0]));
                tma_load(shared.kv[place.stage], matrix, &shared.full[place.stage], 0, tiles.begin + i * Shape::keys, kv_part, tile.b);
                place.advance();
            };
            for (int i = tiles.count - 1; i >= 0; --i) {
                load(k, i);
                load(v, i);
            }
            index = take_tile(order.count());
        }
        index = __shfl_sync(0xffffffffu, index, 0);
    }
    if (lane == 0) publish(order.count(), 0);
}

// One warpgroup, number `consumer`: queries 64 consumer .. 64 consumer + 63 of each tile.
template <int D>
__device__ void consume(Shared<D>& shared, int consumer, const CUtensorMap* dq, const float* lse, const float* delta,
                        const AttentionSizes& s, const DeviceMask& mask, const TileOrder& order) {
    using Shape = Shape<D>;
    constexpr int keys = Shape::keys;
    const int warp = int(threadIdx.x) / 32 % 4, lane = int(threadIdx.x) % 32, g = lane / 4;
    const bool leader = threadIdx.x % 128 == 0;  // asks TMA to store, and waits for it
    const float factor = s.scale() * log2_e, scale = s.scale();

    RingPlace<Shape::slots> place;
    RingPlace<1> q_place;
    const auto wait = [&](const RingPlace<Shape::slots>& at) { barrier_wait(&shared.full[at.stage], at.parity); };
    const auto release = [&](int stage) { lane == 0 ? barrier_arrive(&shared.empty[stage]) : void(); };
    for (;; q_place.advance()) {
        barrier_wait(&shared.q_full, q_place.parity);
        const int index = shared.tile;
        if (index >= order.count()) break;
        const Tile tile = order.at(index);
        const int first_of_tile = (order.tiles - 1 - tile.rank) * Shape::queries;
        const KeyTiles tiles = key_tiles<Shape::queries, Shape::keys>(mask, tile.b, first_of_tile);
        const int first = first_of_tile + 64 * consumer, row = first + 16 * warp + g;  // of this warpgroup; of this thread, and row + 8

        uint32_t q_a[D / 16][4], dout_a[D / 16][4], ds_a[keys / 16][4] = {};
#pragma unroll
        for (int kk = 0; kk < D / 16; ++kk) {
            load_a<64>(q_a[kk], shared.q[consumer] + kk / 4 * 64 * 64, 16 * warp, kk % 4);
            load_a<64>(dout_a[kk], shared.dout[consumer] + kk / 4 * 64 * 64, 16 * warp, kk % 4);
        }
        __syncwarp();
        if (lane == 0) barrier_arrive(&shared.q_empty);  // the next tile's may come
        float log2_sum[2], row_delta[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int64_t at = (tile.b * s.H + tile.h) * s.Tq + min(int64_t(row + 8 * r), s.Tq - 1);
            log2_sum[r] = log2_sum_of(lse[at]);
            row_delta[r] = delta[at];
        }

        float ds[keys / 8][4], dp[keys / 8][4], sum[D / 8][4] = {};  // ds: S first
        const auto begin_scores = [&](const Element* k, const Element* v) {
            const uint64_t k0 = k_major(k, 0), v0 = k_major(v, 0);
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk) wgmma(ds, q_a[kk], further(k0, kk / 4 * keys * 64 + kk % 4 * 16), kk > 0);
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk) wgmma(dp, dout_a[kk], further(v0, kk / 4 * keys * 64 + kk % 4 * 16), kk > 0);
            wgmma_commit();
        };
        const auto begin_sum = [&](const Element* k) {  // dQ += dS K
            const uint64_t k0 = mn_major(k, 0, keys);
#pragma unroll
            for (int kk = 0; kk < keys / 16; ++kk) wgmma<Major::mn>(sum, ds_a[kk], further(k0, kk * 16 * 64), true);
            wgmma_commit();
        };
        const auto to_ds = [&](int i) {
            hold(dp);
            const int n = tiles.begin + i * keys;
            if (n < tiles.range.highest_begin || n + keys > mask.key_end(first))
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    int begin, end;
                    mask.range(tile.b, row + 8 * r, begin, end);
                    hide_keys(ds, r, begin - n, end - n);
                }
#pragma unroll
            for (int j = 0; j < keys / 8; ++j)
#pragma unroll
                for (int e = 0; e < 4; ++e) ds[j][e] = exp2_fast(ds[j][e] * factor - log2_sum[e / 2]) * (dp[j][e] - row_delta[e / 2]);
        };
        int k_stage = -1;  // of the K that the sum under way reads
        const auto finish_sum = [&] {
            wgmma_wait<0>(sum);
            hold(ds_a);  // until here the products read it
            if (k_stage >= 0) release(k_stage);
#pragma unroll
            for (int kk = 0; kk < keys / 16; ++kk) as_a(ds_a[kk], ds[2 * kk], ds[2 * kk + 1]);
        };

        // Of the tiles, from the first one on, those of which this warpgroup sees keys. The others pass by.
        const int own = first < s.Tq ? min(max((mask.key_end(first + 63) - tiles.begin + keys - 1) / keys, 0), tiles.count) : 0;
        for (int i = 2 * (tiles.count - own); i > 0; --i) {
            wait(place);
            __syncwarp();  // a lane that came late would miss the phase
            release(place.stage);
            place.advance();
        }
        const auto next_place = [&] {
            const RingPlace at = place;
            place.advance();
            return at;
        };
        int last_k = 0;
        if (own > 0) {
            const RingPlace k = next_place(), v = next_place();
            wait(k);
            wait(v);
            wgmma_fence();
            begin_scores(shared.kv[k.stage], shared.kv[v.stage]);
            wgmma_wait<0>(ds);
            release(v.stage);
            last_k = k.stage;
            to_ds(own - 1);
        }
        for (int i = own - 2; i >= 0; --i) {  // finish_sum comes first: see the forward
            finish_sum();
            const RingPlace k = next_place(), v = next_place();
            wait(k);
            wait(v);
            wgmma_fence();
            begin_scores(shared.kv[k.stage], shared.kv[v.stage]);
            begin_sum(shared.kv[last_k]);
            k_stage = last_k;
            last_k = k.stage;
            wgmma_wait<1>(ds);
            release(v.stage);
            to_ds(i);
        }
        if (own > 0) {
            finish_sum();
            wgmma_fence();
            begin_sum(shared.kv[last_k]);
        }
        wgmma_wait<0>(sum);
        hold(ds_a);
        if (own > 0) release(last_k);

        if (leader) tma_store_wait_read<0>();  // the tile before
        sync_some<128>(1 + consumer);
        store_fragments<D>(shared.dq[consumer], sum, scale, scale);
        fence_async_proxy();
        sync_some<128>(1 + consumer);
        if (leader) {
            tma_store(dq, shared.dq[consumer], 0, first, tile.h * Shape::parts, tile.b);  // not the rows from Tq on
            tma_store_commit();
        }
    }
    if (leader) tma_store_wait_read<0>();  // a block that has ended has no shared memory
}

template <int D>
__global__ void __launch_bounds__(Shape<D>::threads, 1)
    backward_queries(const float* lse, const float* delta, const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap dout,
                     const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap dq,
                     AttentionSizes s, DeviceMask mask, TileOrder order) {
    using Shape = Shape<D>;
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared<D>& shared = *reinterpret_cast<Shared<D>*>(bytes);
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shape::slots; ++i) {
            barrier_init(&shared.full[i], 1);
            barrier_init(&shared.empty[i], 4 * Shape::consumers);  // warps
        }
        barrier_init(&shared.q_full, 1);
        barrier_init(&shared.q_empty, 4 * Shape::consumers);
        barrier_init_fence();
    }
    __syncthreads();
    const int warpgroup = __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0);  // the compiler sees that a warp has one
    if (warpgroup == Shape::consumers) {
        registers_fewer<Shape::producer_registers>();
        if (threadIdx.x % 128 < 32) produce<D>(shared, &q, &dout, &k, &v, s, mask, order);
    } else {
        registers_more<Shape::consumer_registers>();
        consume<D>(shared, warpgroup, &dq, lse, delta, s, mask, order);
    }
}

template <int D>
void launch(const Tensor& dq, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& lse, const Tensor& delta,
            const AttentionSizes& s, const DeviceMask& mask) {
    using Shape = Shape<D>;
    const TileOrder order = tile_order(s.B, s.H, ceil_div(s.Tq, Shape::queries), 4 * s.Tk * s.D / s.group());
    LAUNCH(backward_queries<D>, unsigned(std::min(order.count(), multiprocessors())), Shape::threads, sizeof(Shared<D>))
    (data<float>(lse), data<float>(delta), head_map<D>(q, 64), head_map<D>(dout, 64), head_map<D>(k, Shape::keys),
     head_map<D>(v, Shape::keys), head_map<D>(dq, 64), s, mask, order);
}

}  // namespace

void attention_backward_queries_wgmma(const Tensor& dq, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& lse, const Tensor& delta, const AttentionSizes& s, const DeviceMask& mask) {
    (s.D == 64 ? launch<64> : launch<128>)(dq, dout, q, k, v, lse, delta, s, mask);
}

}  // namespace ultrascale::ops
