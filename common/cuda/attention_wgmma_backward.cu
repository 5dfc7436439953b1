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
// The sums are integers, and so do not depend on the order of the tiles of keys: attention_wgmma_sums.cuh. Only the warp that sent a part
// of dQ looks, a step later, whether it has left. The producer has two warps: one asks TMA for K, V, Q and dO, the other one brings the
// rows' log-sum-exp and delta, which begin at any address. Query heads that share a key head are added up. FLOPs 10 Tq Tk D a head, half of
// it causal.
#include "attention_wgmma_backward.cuh"

namespace ultrascale::ops {

namespace {

// One warpgroup, number `consumer`: keys 64 consumer .. 64 consumer + 63 of each tile.
template <int D>
__device__ void consume(BackwardShared<D>& shared, int consumer, const CUtensorMap* dk, const CUtensorMap* dv, const DqSums& sums,
                        const AttentionSizes& s, const DeviceMask& mask, const TileOrder& order) {
    using Shape = BackwardShape<D>;
    constexpr int queries = Shape::queries, all = 128 * Shape::consumers, ds_ready = 1, first_group = 2;  // named barriers
    const bool leader = threadIdx.x % 128 == 0;  // asks TMA to store, and waits for it
    const float factor = s.scale() * log2_e;
    // This consumer's part of dQ: for D = 64 its 64 of the queries, for D = 128 of the columns.
    const int dq_query = D == 64 ? 64 * consumer : 0, dq_part = D == 64 ? 0 : consumer;  // either way the next tile of the sums

    RingPlace<1> kv_place;
    int step = 0;  // of all tiles, from which follow places in rings
    const auto release = [&](int stage) { threadIdx.x % 32 == 0 ? barrier_arrive(&shared.empty[stage]) : void(); };
    for (;; kv_place.advance()) {
        barrier_wait(&shared.kv_full, kv_place.parity);
        const int index = shared.tile;
        if (index >= order.count()) break;
        Element *const k = shared.k[consumer], *const v = shared.v[consumer], *const ds = shared.ds[consumer];
        const Tile tile = order.at(index);
        const int first_of_tile = tile.rank * Shape::keys, first = first_of_tile + 64 * consumer;
        const int steps = QueryTiles<queries>(mask, s, tile.h, first_of_tile).count;

        float p[queries / 8][4], part[8][4];  // p: S first; part: dP of 64 queries, and a part of dQ, which has left before dP comes
        float dk_sum[D / 8][4] = {}, dv_sum[D / 8][4] = {};
        uint32_t p_a[queries / 16][4] = {};
        const auto begin_product = [&]<int tiles>(float(&sum)[tiles][4], const Element* a, const Element* b) {  // A B^T, over D
            const uint64_t a0 = k_major(a, 0), b0 = k_major(b, 0);
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk)
                wgmma(sum, further(a0, kk / 4 * 64 * 64 + kk % 4 * 16), further(b0, kk / 4 * queries * 64 + kk % 4 * 16), kk > 0);
            wgmma_commit();
        };
        const auto begin_dv = [&](int half, const Element* dout) {
            const uint64_t b0 = mn_major(dout, 0, queries);
#pragma unroll
            for (int kk = half * 4; kk < half * 4 + 4; ++kk) wgmma<Major::mn>(dv_sum, p_a[kk], further(b0, kk * 16 * 64), true);
            wgmma_commit();
        };
        const auto begin_dq = [&] {  // over both consumers' keys
            const uint64_t a0 = mn_major(shared.ds[0] + dq_query * 64, 0, 64), b0 = mn_major(shared.k[0] + dq_part * 64 * 64, 0, 64);
#pragma unroll
            for (int kk = 0; kk < Shape::keys / 16; ++kk)
                wgmma<Major::mn, Major::mn>(part, further(a0, kk / 4 * 64 * queries + kk % 4 * 16 * 64),
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
        const auto to_probabilities = [&](const BackwardRows<queries>& rows) {
            const int thread = thread_here(), key = first + thread / 32 * 16 + thread % 32 / 4, t = thread % 4, end = rows.key_end;
            if (rows.highest_begin > first || end < first + 64)
#pragma unroll
                for (int j = 0; j < queries / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int column = 8 * j + 2 * t + e % 2, its_key = key + e / 2 * 8;
                        if (its_key < rows.begin[column] || its_key >= min(end + column, int(mask.Tk))) p[j][e] = -INFINITY;
                    }
#pragma unroll
            for (int j = 0; j < queries / 8; ++j) {
                const float2 log2_sum = *reinterpret_cast<const float2*>(rows.log2_sum + 8 * j + 2 * t);
#pragma unroll
                for (int e = 0; e < 4; ++e) p[j][e] = exp2_fast(p[j][e] * factor - (e % 2 == 0 ? log2_sum.x : log2_sum.y));
            }
        };
        // To memory, by the copy engine. A warp has its own place for it.
        const auto send_dq = [&](const BackwardRows<queries>& rows) {
            const int thread = thread_here(), warp = thread / 32, lane = thread % 32;
            int* const dq_place = shared.dq[4 * consumer + warp];
            if (lane == 0) barrier_arrive(&shared.ds_free), tma_store_wait_read<0>();
            __syncwarp();
            const float* const factors = rows.factor + dq_query + 16 * warp + lane / 4;
            const float low = factors[0], high = factors[8];
#pragma unroll
            for (int j = 0; j < 8; ++j)
                reinterpret_cast<int4*>(dq_place)[j * 32 + lane] = {__float2int_rn(part[j][0] * low), __float2int_rn(part[j][1] * low),
                                                                    __float2int_rn(part[j][2] * high), __float2int_rn(part[j][3] * high)};
            fence_async_proxy();
            __syncwarp();
            if (lane == 0)
                bulk_add(sums.sums + int64_t(rows.dq_tile + consumer) * dq_tile + warp * dq_of_warp, dq_place, sizeof(shared.dq[0])),
                    tma_store_commit();
        };
        // P to dS, of 64 queries at a time: dV is under way while this is computed. The wait is also for the dK before.
        const auto finish_step = [&](int stage) {
            const BackwardRows<queries>& rows = shared.rows[stage];
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk) as_a(p_a[kk], p[2 * kk], p[2 * kk + 1]);
#pragma unroll
            for (int half = 0; half < queries / 64; ++half) {
                wgmma_fence();
                begin_product(part, v, shared.dout[stage] + half * 64 * 64);
                begin_dv(half, shared.dout[stage]);
                wgmma_wait<1>(part);
                if (half == 0) barrier_wait(&shared.ds_free, (step & 1) ^ 1);
                const int thread = thread_here(), row = thread / 32 * 16 + thread % 16, chunk = thread % 32 / 16, t = thread % 4;
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    const float2 delta = *reinterpret_cast<const float2*>(rows.delta + 64 * half + 8 * j + 2 * t);
#pragma unroll
                    for (int e = 0; e < 4; ++e) p[8 * half + j][e] *= part[j][e] - (e % 2 == 0 ? delta.x : delta.y);
                }
#pragma unroll
                for (int j = 0; j < 8; j += 2) {
                    const float(&left)[4] = p[8 * half + j], (&right)[4] = p[8 * half + j + 1];
                    stmatrix(tile_chunk<64>(ds + half * 64 * 64, row, j + chunk), pack(left[0], left[1]), pack(left[2], left[3]),
                             pack(right[0], right[1]), pack(right[2], right[3]));
                }
            }
            fence_async_proxy();
        };
        const auto stage_of = [](int step) { return int(unsigned(step) % Shape::stages); };
        const auto wait = [&] { barrier_wait(&shared.full[stage_of(step)], unsigned(step) / Shape::stages & 1); };
        if (steps > 0) {
            const int end = step + steps;
            wait();
            wgmma_fence();
            begin_product(p, k, shared.q[stage_of(step)]);
            wgmma_wait<0>(p);
            to_probabilities(shared.rows[stage_of(step)]);
            finish_step(stage_of(step));
            for (++step; step < end; ++step) {
                wait();
                wgmma_fence();
                begin_product(p, k, shared.q[stage_of(step)]);
                sync_some<all>(ds_ready);
                begin_dq();
                begin_dk(shared.q[stage_of(step - 1)]);
                wgmma_wait<2>(p);  // and for the dV before it
                hold(p_a);
                to_probabilities(shared.rows[stage_of(step)]);
                wgmma_wait<1>(part);
                send_dq(shared.rows[stage_of(step - 1)]);
                finish_step(stage_of(step));
                release(stage_of(step - 1));
            }
            sync_some<all>(ds_ready);
            wgmma_fence();
            begin_dq();
            begin_dk(shared.q[stage_of(step - 1)]);
            wgmma_wait<1>(part);
            hold(p_a);
            send_dq(shared.rows[stage_of(step - 1)]);
            wgmma_wait<0>(dk_sum);
            hold(dv_sum);
            release(stage_of(step - 1));
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
    if (threadIdx.x % 32 == 0) tma_store_wait_read<0>();  // a block that has ended has no shared memory
}

template <int D>
__global__ void __launch_bounds__(BackwardShape<D>::threads, 1)
    backward(const float* lse, const float* delta, DqSums sums, const __grid_constant__ CUtensorMap q,
             const __grid_constant__ CUtensorMap dout, const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
             const __grid_constant__ CUtensorMap dk, const __grid_constant__ CUtensorMap dv, AttentionSizes s, DeviceMask mask,
             TileOrder order) {
    using Shape = BackwardShape<D>;
    extern __shared__ __align__(1024) unsigned char bytes[];
    BackwardShared<D>& shared = *reinterpret_cast<BackwardShared<D>*>(bytes);
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
    using Shape = BackwardShape<D>;
    const TileOrder order = tile_order(s.B, s.K, ceil_div(s.Tk, Shape::keys), 8 * s.Tq * s.D * s.group());  // Q, dO and dQ's sums
    LAUNCH(backward<D>, unsigned(std::min(order.count(), multiprocessors())), Shape::threads, sizeof(BackwardShared<D>))
    (data<float>(lse), data<float>(delta), sums, head_map<D>(q, Shape::queries), head_map<D>(dout, Shape::queries), head_map<D>(k, 64),
     head_map<D>(v, 64), head_map<D>(dk, 64), head_map<D>(dv, 64), s, mask, order);
}

}  // namespace

void attention_backward_wgmma(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout, const Tensor& q, const Tensor& k,
                              const Tensor& v, const Tensor& lse, const Tensor& delta, const AttentionSizes& s, const DeviceMask& mask) {
    const int tiles = int(ceil_div(s.Tq, 128)) * 2;
    const Tensor sums = Tensor::zeros({s.B, s.H, tiles * 64, s.D}, DType::int32, Memory::workspace);
    const Tensor factors = dq_factors(dout, k, v, lse, delta, s);
    const DqSums dq_sums = {data<int>(sums), data<float>(factors), tiles};
    (s.D == 64 ? launch<64> : launch<128>)(dk, dv, dq_sums, dout, q, k, v, lse, delta, s, mask);
    dq_result(dq, dq_sums, s);
}

}  // namespace ultrascale::ops
