// FlashAttention-3's backward for Hopper (Shah et al. 2024, https://arxiv.org/abs/2407.08608):
// bf16, head dimension 64 or 128. With P = exp(scale S - lse), dP = dO V^T and dS = P (dP - delta),
// five products:
//
//     S^T = K Q^T    dP^T = V dO^T    dV += P^T dO    dK += dS^T Q    dQ += dS K
//
// A block owns 128 keys and loops over the queries that see them. Each of its two consumers owns 64
// of the keys, so P^T and dS^T have keys as rows, and dK and dV stay in registers. dS goes to
// shared memory, where both consumers read all of it: each computes a part of dQ of 64 queries x 64
// columns. The picture shows the products that a consumer issues and its computations meanwhile;
// dV, dK and dQ are one step behind:
//
//     tensor cores  S2 | dV1 | dK1 | dP2 | dQ1      |                         | S3 | dV2 | dK2 ...
//     this warpgroup   | P2 .......|     | dS2 .... | dS2 -> shared, send dQ1 |    | P3 ...
//
//     producer     `full`: Q, dO and their rows are there   consumers
//                  `empty`: a stage has been read
//                  `kv_full`, `kv_empty`: likewise K and V
//     consumers    `ds_ready`: dS is there, of both         consumers, who may be half a step apart
//                  `ds_free`: both have made dQ of it
//     each warp    its part of dQ in shared memory -> the copy engine adds it to the sums in
//                  memory, while the next step goes on
//
// The sums are integers, so they do not depend on the order of the tiles of keys:
// attention_wgmma_sums.cuh. Only the warp that sent a part of dQ checks, a step later, whether it
// has been read. P is kept as bf16, as the product needs it, so that dP can use S's registers; this
// raises the relative error of dQ and dK from 2.3e-3 to 2.8e-3. The kernel adds up the query heads
// that share a key head; if there are few tiles of keys, several blocks do so (Pieces). FLOPs: 10
// Tq Tk D per head, half of that if causal.
#include "attention_wgmma_backward.cuh"
#include "attention_wgmma_gradients.cuh"

namespace ultrascale::ops {

namespace {

// Runs on warpgroup number `consumer`: keys 64 consumer .. 64 consumer + 63 of each tile.
template <int D, class Output>
__device__ void consume(BackwardShared<D>& shared, int consumer, const Output& out,
                        const OpenTiles<D>& open, const AttentionSizes& s, const DeviceMask& mask,
                        const Pieces& pieces) {
    using Shape = BackwardShape<D>;
    constexpr int queries = Shape::queries;
    const float factor = s.scale() * log2_e;
    // This consumer's part of dQ: 64 of the queries if D = 64, 64 of the columns if D = 128.
    const int dq_query = D == 64 ? 64 * consumer : 0, dq_part = D == 64 ? 0 : consumer;
    Element *const k = shared.k[consumer], *const v = shared.v[consumer],
                   *const ds = shared.ds[consumer];

    PipelineState<1> kv_state;
    StepState<Shape::stages> state;
    // This warp arrives once, and its part of dQ leaves from `outgoing`.
    const auto arrive = [&](Barrier& at) { first_lane() ? barrier_arrive(&at) : void(); };
    const auto outgoing = [&] { return shared.outgoing[4 * consumer + int(thread_here()) / 32]; };
    for (;; kv_state.advance()) {
        barrier_wait(&shared.kv_full, kv_state.parity);
        const int index = shared.tile[kv_state.parity];
        if (index >= pieces.count()) break;
        const KeyTile keys(pieces, index);
        const int first = keys.first + 64 * consumer;
        QueryTiles<queries> tiles(mask, s, keys, pieces);

        float p[queries / 8][4], part[8][4];  // p: S, then dP, then dS; part: of dQ
        float dk_sum[D / 8][4] = {}, dv_sum[D / 8][4] = {};
        uint32_t p_a[queries / 16][4] = {};                                   // P
        const auto begin_product = [&](const Element* a, const Element* b) {  // p = A B^T, over D
            const uint64_t a0 = k_major(a, 0), b0 = k_major(b, 0);
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk)
                wgmma(p, further(a0, kk / 4 * 64 * 64 + kk % 4 * 16),
                      further(b0, kk / 4 * queries * 64 + kk % 4 * 16), kk > 0);
            wgmma_commit();
        };
        const auto begin_dv = [&](const Element* dout) {
            const uint64_t b0 = mn_major(dout, 0, queries);
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk)
                wgmma<Major::mn>(dv_sum, p_a[kk], further(b0, kk * 16 * 64), true);
            wgmma_commit();
        };
        const auto begin_dk = [&](const Element* q) {
            const uint64_t a0 = k_major(ds, 0), b0 = mn_major(q, 0, queries);
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk)
                wgmma<Major::k, Major::mn>(dk_sum, further(a0, kk / 4 * 64 * 64 + kk % 4 * 16),
                                           further(b0, kk * 16 * 64), true);
            wgmma_commit();
        };
        const auto begin_dq = [&] {  // over both consumers' keys
            const uint64_t a0 = mn_major(shared.ds[0] + dq_query * 64, 0, 64),
                           b0 = mn_major(shared.k[0] + dq_part * 64 * 64, 0, 64);
#pragma unroll
            for (int kk = 0; kk < Shape::keys / 16; ++kk)
                wgmma<Major::mn, Major::mn>(
                    part, further(a0, kk / 4 * 64 * queries + kk % 4 * 16 * 64),
                    further(b0, kk / 4 * 64 * D + kk % 4 * 16 * 64), kk > 0);
            wgmma_commit();
        };
        // Loads log2_sum or delta for this thread's columns, before it issues products: after them,
        // the loads would wait until the products, whose operands are also in shared memory, are
        // done.
        float row_values[queries / 16][4];
        const auto load_rows = [&](const float(&from)[queries]) {
            const float* const first = from + 4 * (thread_here() % 4);
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk) load_floats(row_values[kk], first + 16 * kk);
        };
        // Computes P in p, not yet in p_a, which the product for dV still reads.
        const auto to_probabilities = [&](const BackwardRows<D>& rows, int highest_begin,
                                          int key_end) {
            const int thread = int(thread_here()), key = first + thread / 32 * 16 + thread % 32 / 4,
                      t = thread % 4;
            if (highest_begin > first || key_end < first + 64)
                hide_unseen<D>(p, rows, key, 2 * t, key_end, mask);
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk)
#pragma unroll
                for (int i = 0; i < 8; ++i) {
                    float& x = p[2 * kk + i / 4][i % 4];
                    x = exp2_fast(x * factor - row_values[kk][i / 4 * 2 + i % 2]);
                }
        };
        const auto keep_probabilities = [&] {
#pragma unroll
            for (int kk = 0; kk < queries / 16; ++kk) as_a(p_a[kk], p[2 * kk], p[2 * kk + 1]);
        };
        const auto store_ds = [&] {
            barrier_wait(&shared.ds_free, state.step_parity() ^ 1);
            store_fragments<queries, 64>(ds, int(thread_here()) / 32 * 16, p, 1, 1);
        };
        float low = 0, high = 0;  // the factors of rows g and g + 8 of the dQ in `part`
        const auto load_factors = [&] {
            const BackwardRows<D>& rows = shared.rows[state.stage_before()];
            const int thread = int(thread_here()),
                      row = dq_query + thread / 32 * 16 + thread % 32 / 4;
            low = rows.factor[row], high = rows.factor[row + 8];
        };
        // Writes dQ's part to this warp's buffer.
        const auto store_dq = [&] {
            __syncwarp();
            arrive(shared.ds_free);
            arrive(shared.empty[state.stage_before()]);
            make_room();
            round_dq(outgoing(), part, low, high);
        };
        // Adds it to the sums in memory by TMA, after fence_async_proxy().
        const auto send_dq = [&] {
            if (first_lane()) {
                const int64_t to =
                    int64_t(tiles.index(open.head_stride)) * (queries * D) + consumer * dq_tile;
                bulk_add(open.sums + to + int(thread_here()) / 32 * dq_of_warp, outgoing(),
                         sizeof(shared.outgoing[0]));
                tma_store_commit();
            }
            tiles.advance();
        };
        const auto make_step = [&](auto later) {  // the first step has no previous one
            const int stage = state.stage(), before = state.stage_before();
            const BackwardRows<D>& rows = shared.rows[stage];
            barrier_wait(&shared.full[stage], state.parity());
            const int highest_begin = rows.highest_begin, key_end = rows.key_end;
            load_rows(rows.log2_sum);
            wgmma_fence();
            begin_product(k, shared.q[stage]);
            if constexpr (later) {
                begin_dv(shared.dout[before]);
                begin_dk(shared.q[before]);
            }
            wgmma_wait<later ? 2 : 0>(p);
            to_probabilities(rows, highest_begin, key_end);
            // This wait is a branch, and the compiler does not move the exponentials across it;
            // otherwise they would come after dV.
            if constexpr (later) barrier_wait(&shared.ds_ready, state.step_parity() ^ 1);
            wgmma_wait<1>(dv_sum);
            hold(p_a);
            keep_probabilities();
            load_rows(rows.delta);
            if constexpr (later) load_factors();
            wgmma_fence();
            begin_product(v, shared.dout[stage]);
            if constexpr (later) begin_dq();
            wgmma_wait<later ? 1 : 0>(p);  // this also waits for dK, issued before
            to_ds(p, p_a, row_values);
            if constexpr (later) {
                wgmma_wait<0>(part);
                store_dq();
            }
            store_ds();
            fence_async_proxy();
            // dK reads this consumer's dS without waiting for ds_ready.
            sync_some<128>(1 + consumer);
            arrive(shared.ds_ready);
            if constexpr (later) send_dq();
            state.advance();
        };
        if (tiles.count > 0) {
            make_step(std::false_type{});
            for (int left = tiles.count - 1; left > 0; --left) make_step(std::true_type{});
            wgmma_fence();
            begin_dv(shared.dout[state.stage_before()]);
            begin_dk(shared.q[state.stage_before()]);
            load_factors();
            barrier_wait(&shared.ds_ready, state.step_parity() ^ 1);
            wgmma_fence();
            begin_dq();
            wgmma_wait<0>(part);
            hold(p_a), hold(dk_sum), hold(dv_sum);
            arrive(shared.kv_empty);
            store_dq();
            fence_async_proxy();
            __syncwarp();
            send_dq();
        } else {
            __syncwarp();  // all lanes have read the tile's number
            arrive(shared.kv_empty);
            if (Output::add && pieces.per_tile == 1) continue;  // nothing to add
        }

        // Read again, as all registers are in use.
        const KeyTile tile(pieces, shared.tile[kv_state.parity]);
        const int first_of_warp = first + int(thread_here()) / 32 * 16;
        store_gradients<D>(out, pieces, outgoing(), tile, first_of_warp, dv_sum, dk_sum, s);
    }
    if (first_lane()) tma_store_wait_read<0>();  // a block's shared memory ends with it
}

template <int D, class Output>
__global__ void __launch_bounds__(BackwardShape<D>::threads, 1)
    backward(const __grid_constant__ OpenTiles<D> open, const __grid_constant__ CUtensorMap q,
             const __grid_constant__ CUtensorMap dout, const __grid_constant__ CUtensorMap k,
             const __grid_constant__ CUtensorMap v, const __grid_constant__ Output out,
             AttentionSizes s, DeviceMask mask, Pieces pieces) {
    using Shape = BackwardShape<D>;
    extern __shared__ __align__(1024) unsigned char bytes[];
    BackwardShared<D>& shared = *reinterpret_cast<BackwardShared<D>*>(bytes);
    if (threadIdx.x == 0) init_barriers(shared);
    __syncthreads();
    const int warpgroup = same_in_warp(int(threadIdx.x) / 128);
    if (warpgroup == Shape::consumers) {
        registers_fewer<Shape::producer_registers>();
        if (threadIdx.x % 128 == 0) produce<D>(shared, open, &q, &dout, &k, &v, s, mask, pieces);
    } else {
        registers_more<Shape::consumer_registers>();
        consume<D>(shared, warpgroup, out, open, s, mask, pieces);
    }
}

template <int D>
void launch(const OpenDq& open, int64_t b, int64_t first, const Tensor& dk, const Tensor& dv,
            const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
            const AttentionSizes& s, const DeviceMask& mask, bool add) {
    using Shape = BackwardShape<D>;
    const OpenTiles<D> tiles(open, b, first, s.H);
    const TileOrder order = tile_order(s.B, s.K, ceil_div(s.Tk, Shape::keys),
                                       8 * s.Tq * s.D * s.group());  // Q, dO, dQ's sums
    const auto run = [&](auto kernel, const auto& out) {
        const int64_t steps = s.group() * ceil_div(s.Tq, Shape::queries);
        for (Pieces& pieces : divided(order, steps, mask, true)) {
            const Tensor piece_storage = piece_results(pieces, 2 * Shape::keys * s.D);
            LAUNCH(kernel, unsigned(std::min(pieces.count(), multiprocessors())), Shape::threads,
                   sizeof(BackwardShared<D>))
            (tiles, head_map<D>(q, Shape::queries), head_map<D>(dout, Shape::queries),
             head_map<D>(k, 64), head_map<D>(v, 64), out, s, mask, pieces);
            if (pieces.per_tile > 1) add_pieces(dk, dv, pieces, s, add);
        }
    };
    const auto run_wide = [&]<bool adds>(std::bool_constant<adds>) {
        run(backward<D, WideOutput<adds>>,
            WideOutput<adds>{head_map<D, float>(dk, 16), head_map<D, float>(dv, 16)});
    };
    if (dk.dtype() == DType::fp32)
        add ? run_wide(std::true_type{}) : run_wide(std::false_type{});
    else
        run(backward<D, NarrowOutput>, NarrowOutput{head_map<D>(dk, 16), head_map<D>(dv, 16)});
}

}  // namespace

void attention_backward_wgmma(const Tensor& dq, const Tensor& dk, const Tensor& dv,
                              const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& lse, const Tensor& delta, const AttentionSizes& s,
                              const DeviceMask& mask, AttentionAdds add) {
    const OpenDq open = open_with_block(dout, lse, delta, k, v, s, mask);
    (s.D == 64 ? launch<64> : launch<128>)(open, 0, 0, dk, dv, dout, q, k, v, s, mask, add.dkv);
    close_dq_wgmma(dq, open, add.dq);
}
void attention_backward_wgmma(const OpenDq& open, int64_t b, int64_t first, const Tensor& dk,
                              const Tensor& dv, const Tensor& dout, const Tensor& q,
                              const Tensor& k, const Tensor& v, const AttentionSizes& s,
                              const DeviceMask& mask, bool add_dkv) {
    next_block(open, b, first, k, v, s, mask);
    (s.D == 64 ? launch<64> : launch<128>)(open, b, first, dk, dv, dout, q, k, v, s, mask, add_dkv);
}

}  // namespace ultrascale::ops
