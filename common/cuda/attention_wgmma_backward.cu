// FlashAttention-3's backward for Hopper (Shah et al. 2024, https://arxiv.org/abs/2407.08608): bf16, head dimension 64 or 128. With
// P = exp(scale S - lse), dP = dO V^T and dS = P (dP - delta), five products:
//
//     S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q    dQ += dS K
//
// A block has 128 keys and walks over the queries that see them. Each of its two consumers has 64 of the keys, so P^T and dS^T have keys as
// rows and dK and dV stay in registers. dS also goes to shared memory, where both consumers read all of it: each one makes a part of dQ of
// 64 queries x 64 columns. What a consumer asks for, and what it computes meanwhile; dQ and dK come one step late:
//
//     tensor cores     S2 | dQ1    | dK1      | dP2 | dV2           | S3 | dQ2 ...
//     this warpgroup      | P2 ... | send dQ1       | dS2 ... ready | P3 ...
//
//     producers    `full`: Q, dO and their rows are there     consumers
//                  `empty`: a stage has been read
//     consumers    ds_ready: dS is there, of both             consumers
//                  `ds_free`: both have made dQ of it
//     each warp    its part of dQ in shared memory -> the copy engine adds it to the sums in memory, while the next step goes on
//
// The sums are integers, and so do not depend on the order of the tiles of keys: attention_wgmma_sums.cuh. No warp has to wait for dQ's way
// to memory but the one that wrote it, a step later. The producer has two warps: one asks TMA for K, V, Q and dO, the other one brings the
// rows' log-sum-exp and delta, which begin at any address. Query heads that share a key head are added up. FLOPs 10 Tq Tk D a head, half of
// it causal.
#include "attention_wgmma_sums.cuh"

namespace ultrascale::ops {

namespace {

template <int D>
struct Shape {
    static constexpr int consumers = 2;  // warpgroups of 64 keys
    static constexpr int keys = 64 * consumers, queries = D == 64 ? 128 : 64;
    static constexpr int stages = 3;  // tiles of queries under way, 32 KiB each
    static constexpr int threads = 128 * (consumers + 1);
    static constexpr int consumer_registers = 240, producer_registers = 24;
    static constexpr int parts = D / 64;  // a row of D is this many rows of 128 bytes (wgmma.cuh)
};

template <int queries>
struct alignas(8) Rows {  // of a tile of queries; two neighbours are read at once
    float log2_sum[queries], delta[queries], factor[queries];
    int begin[queries];  // of the documents, as keys
    int highest_begin;
};
template <int D>
struct Shared {
    Element k[Shape<D>::consumers][64 * D], v[Shape<D>::consumers][64 * D];  // (parts, 64, 64); at the end dK, dV
    Element q[Shape<D>::stages][Shape<D>::queries * D], dout[Shape<D>::stages][Shape<D>::queries * D];  // (parts, queries, 64)
    Element ds[Shape<D>::consumers][64 * Shape<D>::queries];                                            // (queries / 64, 64 keys, 64)
    int dq[4 * Shape<D>::consumers][dq_of_warp];
    Rows<Shape<D>::queries> rows[Shape<D>::stages];
    Barrier full[Shape<D>::stages], empty[Shape<D>::stages], kv_full, kv_empty, ds_free;
    int tile;  // which one has its K and V there; past the last one: there are no more
};
static_assert(sizeof(Shared<64>) <= 227 << 10 && sizeof(Shared<128>) <= 227 << 10);

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
__device__ void produce(Shared<D>& shared, const CUtensorMap* q, const CUtensorMap* dout, const CUtensorMap* k, const CUtensorMap* v,
                        const AttentionSizes& s, const DeviceMask& mask, const TileOrder& order) {
    using Shape = Shape<D>;
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

// One warp: the rows' log-sum-exp, delta, factors and documents. It reads the next tile's ahead.
template <int D>
__device__ void produce_rows(Shared<D>& shared, const float* lse, const float* delta, const DqSums& sums, const AttentionSizes& s,
                             const DeviceMask& mask, const TileOrder& order) {
    using Shape = Shape<D>;
    constexpr int rows_of_lane = Shape::queries / 32;
    const int lane = int(threadIdx.x) % 32;
    RingPlace<Shape::stages> place;
    RingPlace<1> kv_place;
    for (;; kv_place.advance()) {
        barrier_wait(&shared.kv_full, kv_place.parity);
        const int index = shared.tile;
        if (index >= order.count()) break;
        const Tile tile = order.at(index);
        QueryTiles<Shape::queries> tiles(mask, s, tile.h, tile.rank * Shape::keys);
        float next_lse[rows_of_lane], next_delta[rows_of_lane], next_factor[rows_of_lane];
        const auto read = [&] {
#pragma unroll
            for (int r = 0; r < rows_of_lane; ++r) {
                const int query = tiles.query + lane + 32 * r;
                const bool valid = query < tiles.end;  // behind the last one Q and dO are zero, and so is all that comes of them
                const int64_t at = (int64_t(tile.b) * s.H + tiles.head) * s.Tq + query;
                next_lse[r] = valid ? lse[at] : 0, next_delta[r] = valid ? delta[at] : 0;
                next_factor[r] = valid ? dq_factor(sums, at, tile.b * s.K + tile.h, next_lse[r], next_delta[r], 1) : 0;
            }
        };
        if (tiles.count > 0) read();
        for (int i = 0; i < tiles.count; ++i, place.advance()) {
            Rows<Shape::queries>& rows = shared.rows[place.stage];
            barrier_wait(&shared.empty[place.stage], place.parity ^ 1);
            int highest = 0;
#pragma unroll
            for (int r = 0; r < rows_of_lane; ++r) {
                const int row = lane + 32 * r, query = min(tiles.query + row, tiles.end - 1);
                const int begin = mask.starts ? mask.starts[tile.b * s.Tq + query] - int(mask.k_offset) : 0;
                rows.log2_sum[row] = log2_sum_of(next_lse[r]), rows.delta[row] = next_delta[r], rows.begin[row] = begin;
                rows.factor[row] = next_factor[r];
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
        if (lane == 0) barrier_arrive(&shared.kv_empty);  // the tile's number has been read
    }
}

// One warpgroup, number `consumer`: keys 64 consumer .. 64 consumer + 63 of each tile.
template <int D>
__device__ void consume(Shared<D>& shared, int consumer, const CUtensorMap* dk, const CUtensorMap* dv, const DqSums& sums,
                        const AttentionSizes& s, const DeviceMask& mask, const TileOrder& order) {
    using Shape = Shape<D>;
    constexpr int queries = Shape::queries, all = 128 * Shape::consumers, ds_ready = 1, first_group = 2;  // named barriers
    const int warp = int(threadIdx.x) / 32 % 4, lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const bool leader = threadIdx.x % 128 == 0;  // asks TMA to store, and waits for it
    const float factor = s.scale() * log2_e;
    // This consumer's part of dQ: the second 64 queries, or the second 64 columns.
    const int dq_query = D == 64 ? 64 * consumer : 0, dq_part = D == 64 ? 0 : consumer;
    int* const dq_place = shared.dq[4 * consumer + warp];

    RingPlace<Shape::stages> place;
    RingPlace<1> kv_place, ds_place;
    const auto release = [&](int stage) { lane == 0 ? barrier_arrive(&shared.empty[stage]) : void(); };
    for (;; kv_place.advance()) {
        barrier_wait(&shared.kv_full, kv_place.parity);
        const int index = shared.tile;
        if (index >= order.count()) break;
        Element *const k = shared.k[consumer], *const v = shared.v[consumer], *const ds = shared.ds[consumer];
        const Tile tile = order.at(index);
        const int first_of_tile = tile.rank * Shape::keys, first = first_of_tile + 64 * consumer, key = first + 16 * warp + g;
        QueryTiles<queries> tiles(mask, s, tile.h, first_of_tile);

        float p[queries / 8][4], dp[queries / 8][4], dq[8][4], dk_sum[D / 8][4] = {}, dv_sum[D / 8][4] = {};  // p: S first
        uint32_t p_a[queries / 16][4] = {};
        const auto begin_product = [&](float(&sum)[queries / 8][4], const Element* a, const Element* b) {  // A B^T, over D
            const uint64_t a0 = k_major(a, 0), b0 = k_major(b, 0);
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk)
                wgmma(sum, further(a0, kk / 4 * 64 * 64 + kk % 4 * 16), further(b0, kk / 4 * queries * 64 + kk % 4 * 16), kk > 0);
            wgmma_commit();
        };
        const auto begin_dv = [&](const Element* dout) {
            const uint64_t b0 = mn_major(dout, 0, queries);
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk) wgmma<Major::mn>(dv_sum, p_a[kk], further(b0, kk * 16 * 64), true);
            wgmma_commit();
        };
        const auto begin_dq = [&] {  // over both consumers' keys
            const uint64_t a0 = mn_major(shared.ds[0] + dq_query * 64, 0, 64), b0 = mn_major(shared.k[0] + dq_part * 64 * 64, 0, 64);
#pragma unroll
            for (int kk = 0; kk < Shape::keys / 16; ++kk)
                wgmma<Major::mn, Major::mn>(dq, further(a0, kk / 4 * 64 * queries + kk % 4 * 16 * 64),
                                            further(b0, kk / 4 * 64 * D + kk % 4 * 16 * 64), kk > 0);
            wgmma_commit();
        };
        const auto begin_dk = [&](const Element* q) {
            const uint64_t a0 = k_major(ds, 0), b0 = mn_major(q, 0, queries);
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk)
                wgmma<Major::k, Major::mn>(dk_sum, further(a0, kk / 4 * 64 * 64 + kk % 4 * 16), further(b0, kk * 16 * 64), true);
            wgmma_commit();
        };
        const auto to_probabilities = [&](const Rows<queries>& rows) {
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
        };
        const auto send_ds = [&](const Rows<queries>& rows) {
            barrier_wait(&shared.ds_free, ds_place.parity ^ 1);
            ds_place.advance();
#pragma unroll
            for (int j = 0; j < queries / 8; ++j) {
                const float2 delta = *reinterpret_cast<const float2*>(rows.delta + 8 * j + 2 * t);
#pragma unroll
                for (int e = 0; e < 4; ++e) p[j][e] *= dp[j][e] - (e % 2 == 0 ? delta.x : delta.y);
            }
            store_fragments<queries>(ds, p, 1, 1);
            fence_async_proxy();
        };
        // To memory, by the copy engine. A warp has its own place for it.
        const auto send_dq = [&](const Rows<queries>& rows, int* to) {
            if (lane == 0) barrier_arrive(&shared.ds_free), tma_store_wait_read<0>();
            __syncwarp();
            const float* const factors = rows.factor + dq_query + 16 * warp + g;
            const float low = factors[0], high = factors[8];
#pragma unroll
            for (int j = 0; j < 8; ++j)
                reinterpret_cast<int4*>(dq_place)[j * 32 + lane] = {__float2int_rn(dq[j][0] * low), __float2int_rn(dq[j][1] * low),
                                                                    __float2int_rn(dq[j][2] * high), __float2int_rn(dq[j][3] * high)};
            fence_async_proxy();
            __syncwarp();
            if (lane == 0) bulk_add(to, dq_place, sizeof(shared.dq[0])), tma_store_commit();
        };
        int last_stage = 0;  // of the step whose dQ and dK come next
        int* last_sums = nullptr;
        const auto finish_step = [&](int stage) {  // P to dS, and dP and dV for it
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk) as_a(p_a[kk], p[2 * kk], p[2 * kk + 1]);
            wgmma_fence();
            begin_product(dp, v, shared.dout[stage]);
            begin_dv(shared.dout[stage]);
            wgmma_wait<1>(dp);  // and for the dK before it
        };
        const auto remember = [&](int stage) {
            last_stage = stage;
            last_sums = sums.tile(tile.b * s.H + tiles.head, tiles.query + dq_query, dq_part, Shape::parts) + warp * dq_of_warp;
            tiles.advance();
        };
        const auto next_place = [&] {
            const RingPlace at = place;
            place.advance();
            barrier_wait(&shared.full[at.stage], at.parity);
            return at.stage;
        };
        if (tiles.count > 0) {
            int stage = next_place();
            wgmma_fence();
            begin_product(p, k, shared.q[stage]);
            wgmma_wait<0>(p);
            to_probabilities(shared.rows[stage]);
            finish_step(stage);
            send_ds(shared.rows[stage]);
            remember(stage);
            for (int i = 1; i < tiles.count; ++i) {
                stage = next_place();
                wgmma_fence();
                begin_product(p, k, shared.q[stage]);
                sync_some<all>(ds_ready);
                begin_dq();
                begin_dk(shared.q[last_stage]);
                wgmma_wait<2>(p);  // and for the dV before it
                hold(p_a);
                to_probabilities(shared.rows[stage]);
                wgmma_wait<1>(dq);
                send_dq(shared.rows[last_stage], last_sums);
                finish_step(stage);
                release(last_stage);
                send_ds(shared.rows[stage]);
                remember(stage);
            }
            sync_some<all>(ds_ready);
            wgmma_fence();
            begin_dq();
            begin_dk(shared.q[last_stage]);
            wgmma_wait<1>(dq);
            hold(p_a);
            send_dq(shared.rows[last_stage], last_sums);
            wgmma_wait<0>(dk_sum);
            hold(dv_sum);
            release(last_stage);
        }

        sync_some<all>(ds_ready);  // all warps' products have read K and V
        store_fragments<D>(k, dk_sum, s.scale(), s.scale());
        store_fragments<D>(v, dv_sum, 1, 1);
        fence_async_proxy();
        sync_some<128>(first_group + consumer);
        if (leader) {
            tma_store(dk, k, 0, first, tile.h * Shape::parts, tile.b);  // not the rows from Tk on
            tma_store(dv, v, 0, first, tile.h * Shape::parts, tile.b);
            tma_store_commit();
            tma_store_wait_read<0>();
            barrier_arrive(&shared.kv_empty);
        }
    }
    if (lane == 0) tma_store_wait_read<0>();  // a block that has ended has no shared memory
}

template <int D>
__global__ void __launch_bounds__(Shape<D>::threads, 1)
    backward(const float* lse, const float* delta, DqSums sums, const __grid_constant__ CUtensorMap q,
             const __grid_constant__ CUtensorMap dout, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
             const __grid_constant__ CUtensorMap dk, const __grid_constant__ CUtensorMap dv, AttentionSizes s, DeviceMask mask,
             TileOrder order) {
    using Shape = Shape<D>;
    extern __shared__ __align__(1024) unsigned char bytes[];
    Shared<D>& shared = *reinterpret_cast<Shared<D>*>(bytes);
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shape::stages; ++i) {
            barrier_init(&shared.full[i], 2);                      // the two producers
            barrier_init(&shared.empty[i], 4 * Shape::consumers);  // warps
        }
        barrier_init(&shared.kv_full, 1);
        barrier_init(&shared.kv_empty, Shape::consumers + 1);  // and who brings the rows
        barrier_init(&shared.ds_free, 4 * Shape::consumers);
        barrier_init_fence();
    }
    __syncthreads();
    const int warpgroup = __shfl_sync(0xffffffffu, int(threadIdx.x) / 128, 0);  // the compiler sees that a warp has one
    if (warpgroup == Shape::consumers) {
        registers_fewer<Shape::producer_registers>();
        const int thread = int(threadIdx.x) % 128;
        if (thread == 0) produce<D>(shared, &q, &dout, &k, &v, s, mask, order);
        if (thread / 32 == 1) produce_rows<D>(shared, lse, delta, sums, s, mask, order);
    } else {
        registers_more<Shape::consumer_registers>();
        consume<D>(shared, warpgroup, &dk, &dv, sums, s, mask, order);
    }
}

template <int D>
void launch(const Tensor& dk, const Tensor& dv, const DqSums& sums, const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
            const Tensor& lse, const Tensor& delta, const AttentionSizes& s, const DeviceMask& mask) {
    using Shape = Shape<D>;
    const TileOrder order = tile_order(s.B, s.K, ceil_div(s.Tk, Shape::keys), 8 * s.Tq * s.D * s.group());  // Q, dO and dQ's sums
    LAUNCH(backward<D>, unsigned(std::min(order.count(), multiprocessors())), Shape::threads, sizeof(Shared<D>))
    (data<float>(lse), data<float>(delta), sums, head_map<D>(q, Shape::queries), head_map<D>(dout, Shape::queries), head_map<D>(k, 64),
     head_map<D>(v, 64), head_map<D>(dk, 64), head_map<D>(dv, 64), s, mask, order);
}

}  // namespace

void attention_backward_wgmma(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout, const Tensor& q, const Tensor& k,
                              const Tensor& v, const Tensor& lse, const Tensor& delta, const AttentionSizes& s, const DeviceMask& mask) {
    const int tiles = int(ceil_div(s.Tq, 128)) * 2;
    const Tensor sums = Tensor::zeros({s.B, s.H, tiles * 64, s.D}, DType::int32, Memory::workspace);
    const Tensor norms = Tensor::empty({s.B, s.H, s.Tq}, DType::fp32, Memory::workspace);
    const Tensor highest = Tensor::zeros({2, s.B * s.K}, DType::int32, Memory::workspace);
    const DqSums dq_sums = {data<int>(sums), data<float>(norms), data<int>(highest), data<int>(highest) + s.B * s.K, tiles};
    dq_bounds(dq_sums, dout, k, v, s);
    (s.D == 64 ? launch<64> : launch<128>)(dk, dv, dq_sums, dout, q, k, v, lse, delta, s, mask);
    dq_result(dq, dq_sums, lse, delta, s);
}

}  // namespace ultrascale::ops
