// FlashAttention-3 forward for Hopper (Shah et al. 2024, https://arxiv.org/abs/2407.08608): bf16,
// head dimension 64 or 128.
//
// The formulas are those of attention_mma_forward.cu. The synchronization is new. A block has one
// warpgroup that loads (TMA) and two or three that compute, each on its own 64 queries; K and V
// tiles of 128 keys pass through one ring of slots:
//
//     producer     Q | K0 K1 V0 K2 V1 K3 V2 ...     waits for `empty`, TMA arrives at `full`
//     consumer 0   S0 = Q K0 | turn: S1, O += P0 V0 | softmax of S1 ...... | turn: S2, ...
//     consumer 1             | softmax of S0 ...... | turn: S1, O += P0 V0 | softmax of S1 ...
//
// Matrix products and exponentials overlap in two ways. Between warpgroups: the warpgroup whose
// turn it is issues its two products and passes the turn on, so that its softmax overlaps the
// other's products. Within a warpgroup: the softmax of S1 begins as soon as S1 is complete, while
// P0 V0 is still running. P stays in registers (two C tiles are one A tile, mma.cuh); V is read
// with its keys as rows.
//
// The loop runs from the last key to the first, so the masked tiles come first. Blocks are
// persistent: one per multiprocessor takes tiles of queries, longest first, until none is left, so
// that all blocks end at about the same time. (If tiles are equal, the keys of the leftover tiles
// are divided: Pieces.) A block loads the next tile's Q while it computes this one. O is written
// through the shared memory that held Q. FLOPs: 4 Tq Tk D per head, half of that if causal.
#include "attention_wgmma_forward.cuh"

namespace ultrascale::ops {

namespace {

// Runs on warpgroup number `consumer`: queries 64 consumer .. 64 consumer + 63 of each tile.
template <int D>
__device__ void consume(ForwardShared<D>& shared, int consumer, const CUtensorMap* o, float* lse,
                        const AttentionSizes& s, const DeviceMask& mask, const Pieces& pieces) {
    using Shape = ForwardShape<D>;
    constexpr int keys = Shape::keys;
    const int warp = int(threadIdx.x) / 32 % 4, lane = int(threadIdx.x) % 32, g = lane / 4,
              t = lane % 4;
    const bool leader = threadIdx.x % 128 == 0;  // issues TMA stores, and waits for them
    // Named barriers. A turn's barrier has two warpgroups: the one that waits and the one that
    // passes it on.
    constexpr int first_turn = 1, first_group = first_turn + Shape::consumers, two = 256;
    const int own_turn = first_turn + consumer,
              next_turn = first_turn + (consumer + 1) % Shape::consumers;

    PipelineState<Shape::slots> state;
    PipelineState<2> q_state;
    const auto wait = [&](const PipelineState<Shape::slots>& at) {
        barrier_wait(&shared.full[at.stage], at.parity);
    };
    const auto release = [&](int stage) {
        lane == 0 ? barrier_arrive(&shared.empty[stage]) : void();
    };
    const auto skip = [&] {
        wait(state);
        __syncwarp();  // a late lane would miss the phase
        release(state.stage);
        state.advance();
    };
    const auto take_turn = [&] { sync_some<two>(own_turn); };
    const auto pass_turn = [&] { arrive_some<two>(next_turn); };
    if (consumer == Shape::consumers - 1) pass_turn();  // consumer 0 has the first turn
    bool stored = false;                                // an earlier tile
    for (;; q_state.advance()) {
        barrier_wait(&shared.q_full[q_state.stage], q_state.parity);
        const int index = shared.tile[q_state.stage];
        if (index >= pieces.count()) break;
        Element* const q = shared.q[q_state.stage][consumer];
        const QueryTile<D> tile(pieces, index);
        const KeyTiles tiles = tile.keys(mask, pieces);
        const int first = tile.first + 64 * consumer,
                  // first query of this warpgroup; of this thread, with row + 8
            row = first + 16 * warp + g;

        float score[keys / 8][4], out[D / 8][4] = {};
        uint32_t p[keys / 16][4] = {};
        Softmax softmax{s.scale() * log2_e};
        const auto begin_scores = [&](const Element* k) {  // S = Q K^T
            const uint64_t q0 = k_major(q, 0), k0 = k_major(k, 0);
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk)
                wgmma(score, further(q0, kk / 4 * 64 * 64 + kk % 4 * 16),
                      further(k0, kk / 4 * keys * 64 + kk % 4 * 16), kk > 0);
            wgmma_commit();
        };
        const auto begin_output = [&](const Element* v) {  // O += P V
            const uint64_t v0 = mn_major(v, 0, keys);
#pragma unroll
            for (int kk = 0; kk < keys / 16; ++kk)
                wgmma<Major::mn>(out, p[kk], further(v0, kk * 16 * 64), true);
            wgmma_commit();
        };
        const auto to_probabilities = [&](int i) {
            const int n = tiles.begin + i * keys;
            if (n < tiles.range.highest_begin || n + keys > mask.key_end(first))
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    int begin, end;
                    mask.range(tile.b, row + 8 * r, begin, end);
                    hide_keys(score, r, begin - n, end - n);
                }
            softmax(score);
        };
        int v_stage = -1;  // the V that the running product reads
        // Waits for the running product with V, and prepares O and P for the next one.
        const auto finish_output = [&] {
            wgmma_wait<0>(out);
            hold(p);  // products read it until here
            if (v_stage >= 0) release(v_stage);
            softmax.rescale_output(out);
#pragma unroll
            for (int kk = 0; kk < keys / 16; ++kk) as_a(p[kk], score[2 * kk], score[2 * kk + 1]);
        };

        // How many tiles, from the first one on, have keys that this warpgroup sees. It skips the
        // others.
        const int own =
            first < s.Tq ? min(max((mask.key_end(first + 63) - tiles.begin + keys - 1) / keys, 0),
                               tiles.count)
                         : 0;
        for (int i = tiles.count - 1; i >= own; --i) {
            skip();
            if (i + 1 == tiles.count) continue;
            skip();
            take_turn();
            pass_turn();
        }
        if (own > 0) {
            const PipelineState k = state;
            state.advance();
            wait(k);
            if (own < tiles.count) take_turn();
            wgmma_fence();
            begin_scores(shared.kv[k.stage]);
            if (own < tiles.count) pass_turn(), skip();
            wgmma_wait<0>(score);
            release(k.stage);
            to_probabilities(own - 1);
        }
        // TMA read the previous tile's O long ago: that buffer is free for the next tile's Q
        if (leader && stored) {
            tma_store_wait_read<0>();
            barrier_arrive(&shared.q_empty[q_state.stage ^ 1]);
        }
        // finish_output comes at the beginning of an iteration, not at the end of the previous one:
        // within the loop's body the compiler would move its wait up before the exponentials.
        for (int i = own - 2; i >= 0; --i) {
            finish_output();
            const PipelineState k = state;
            state.advance();
            const PipelineState v = state;
            state.advance();
            wait(k);
            wait(v);
            take_turn();
            wgmma_fence();
            begin_scores(shared.kv[k.stage]);
            begin_output(shared.kv[v.stage]);
            pass_turn();
            v_stage = v.stage;
            wgmma_wait<1>(score);
            release(k.stage);
            to_probabilities(i);
        }
        if (own > 0) {
            finish_output();
            wait(state);
            wgmma_fence();
            begin_output(shared.kv[state.stage]);
        }
        wgmma_wait<0>(out);
        hold(p);
        if (tiles.count > 0) skip();  // the last V

        softmax.finish();
        float inverse[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) inverse[r] = softmax.sum[r] > 0 ? 1 / softmax.sum[r] : 0;
        stored = true;
        sync_some<128>(first_group + consumer);  // the products of all four warps have read Q
        if (pieces.per_tile > 1) {
            const int first_of_warp = 64 * consumer + 16 * warp;
            float* const o_piece =
                pieces.results + tile.index(pieces) * forward_piece<D>(Shape::queries);
            store_rows<D>(o_piece, first_of_warp, lane, out, inverse[0], inverse[1]);
            for (int r = 0; r < 2; ++r)
                if (t == 0)
                    o_piece[Shape::queries * D + first_of_warp + g + 8 * r] = softmax.log_sum(r);
            continue;
        }
        for (int r = 0; r < 2; ++r)
            if (t == 0 && row + 8 * r < s.Tq)
                lse[(tile.b * s.H + tile.h) * s.Tq + row + 8 * r] = softmax.log_sum(r);
        store_fragments<D, 64>(q, 16 * warp, out, inverse[0], inverse[1]);
        fence_async_proxy();
        sync_some<128>(first_group + consumer);
        if (leader) {
            // TMA omits rows from Tq on.
            tma_store(o, q, 0, first, tile.h * Shape::parts, tile.b);
            tma_store_commit();
        }
    }
    if (leader) tma_store_wait_read<0>();  // a block's shared memory ends with it
    if (consumer == 0) take_turn();        // the last turn that was passed on
}

template <int D>
__global__ void __launch_bounds__(ForwardShape<D>::threads, 1)
    forward(float* lse, const __grid_constant__ CUtensorMap q,
            const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v,
            const __grid_constant__ CUtensorMap o, AttentionSizes s, DeviceMask mask,
            Pieces pieces) {
    using Shape = ForwardShape<D>;
    extern __shared__ __align__(1024) unsigned char bytes[];
    ForwardShared<D>& shared = *reinterpret_cast<ForwardShared<D>*>(bytes);
    if (threadIdx.x == 0) {
        for (int i = 0; i < Shape::slots; ++i) {
            barrier_init(&shared.full[i], 1);
            barrier_init(&shared.empty[i], 4 * Shape::consumers);  // warps
        }
        for (int i = 0; i < 2; ++i) {
            barrier_init(&shared.q_full[i], 1);
            barrier_init(&shared.q_empty[i], Shape::consumers);
        }
        barrier_init_fence();
    }
    __syncthreads();
    const int warpgroup = same_in_warp(int(threadIdx.x) / 128);
    if (warpgroup == Shape::consumers) {
        registers_fewer<Shape::producer_registers>();
        if (threadIdx.x % 128 < 32) produce<D>(shared, &q, &k, &v, s, mask, pieces);
    } else {
        registers_more<Shape::consumer_registers>();
        consume<D>(shared, warpgroup, &o, lse, s, mask, pieces);
    }
}

template <int D>
void launch(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k, const Tensor& v,
            const AttentionSizes& s, const DeviceMask& mask) {
    using Shape = ForwardShape<D>;
    const TileOrder order =
        tile_order(s.B, s.H, ceil_div(s.Tq, Shape::queries), 4 * s.Tk * s.D / s.group());
    for (Pieces& pieces : divided(order, ceil_div(s.Tk, Shape::keys), mask, false)) {
        const Tensor piece_storage = piece_results(pieces, forward_piece<D>(Shape::queries));
        LAUNCH(forward<D>, unsigned(std::min(pieces.count(), multiprocessors())), Shape::threads,
               sizeof(ForwardShared<D>))
        (data<float>(lse), head_map<D>(q, 64), head_map<D>(k, Shape::keys),
         head_map<D>(v, Shape::keys), head_map<D>(o, 64), s, mask, pieces);
        if (pieces.per_tile > 1) merge_pieces(o, lse, pieces, s);
    }
}

}  // namespace

bool attention_wgmma_supported(DType dtype, const AttentionSizes& s) {
    return hopper() && attention_mma_supported(dtype, s.D) && s.B * s.H * s.Tq > 0 &&
           s.Tk > 0;  // TMA rejects empty tensors
}

void attention_forward_wgmma(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                             const Tensor& v, const AttentionSizes& s, const DeviceMask& mask) {
    (s.D == 64 ? launch<64> : launch<128>)(o, lse, q, k, v, s, mask);
}

}  // namespace ultrascale::ops
