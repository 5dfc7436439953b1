// Merges attention over another block of keys into attention over those before. It is
// memory-bound: in fp32 it moves 12 bytes per element (o read and written, the block read), and
// where the block is bf16 10.
#include "cuda/ops_common.cuh"
#include "ops_attention_merge.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 128;

// A warp handles 32 of the block's queries of one head, so that it reads and writes 32 consecutive
// log-sum-exps, and each lane computes one query's share. Then 8 lanes work on each row of D
// elements, and the warp on four rows at a time. A lane has its part of 128 elements of both
// rows in flight.
template <int n, class O, class P>
__global__ void __launch_bounds__(threads)
    merge_rows(O* o, float* lse, const P* o_block, const float* lse_block, MergeSizes s,
               int64_t first) {
    constexpr int lanes = 8, at_once = 32 / lanes, packs = 128 / (lanes * n);
    // neighbouring warps: heads
    const int64_t blocks = (s.Tb + 31) / 32,
                  warp = (int64_t(blockIdx.x) * threads + threadIdx.x) / 32;
    const int64_t h = warp % s.H, begin = warp / s.H % blocks * 32, b = warp / s.H / blocks;
    if (b >= s.B) return;
    const int lane = int(threadIdx.x) % 32;

    float before = -INFINITY, more = -INFINITY, share = 1;
    if (const int64_t i = begin + lane; i < s.Tb) {
        float& all = lse[(b * s.H + h) * s.T + first + i];
        before = all, more = lse_block[(b * s.H + h) * s.Tb + i];
        if (more != -INFINITY) {
            // No exponent is positive, so nothing overflows, however far apart the two are: also
            // if the first is -infinity, which makes the share 1.
            const float apart = more - before, e = expf(-fabsf(apart));
            share = (apart > 0 ? 1 : e) / (1 + e);
            all = fmaxf(before, more) + log1pf(e);
        }
    }
    const uint32_t seen = __ballot_sync(0xffffffffu, before != -INFINITY),
                   sees = __ballot_sync(0xffffffffu, more != -INFINITY);
#pragma unroll 1
    for (int turn = 0; turn < 32; turn += at_once) {
        const int row = turn + lane / lanes;
        const float block_share = __shfl_sync(0xffffffffu, share, row);
        // What has seen no key may hold anything, even NaN: it is not read.
        const bool had = seen >> row & 1, has = sees >> row & 1;
        if (begin + row >= s.Tb || (had && !has)) continue;
        O* const to = o + ((b * s.T + first + begin + row) * s.H + h) * s.D;
        const P* const from = o_block + ((b * s.Tb + begin + row) * s.H + h) * s.D;
        for (int64_t d = lane % lanes * n; d < s.D; d += packs * lanes * n) {
            Pack<O, n> sums[packs];
            Pack<P, n> parts[packs];
#pragma unroll
            for (int p = 0; p < packs; ++p) {
                const int64_t at = d + p * lanes * n;
                if (had && at < s.D) sums[p] = load<n>(to + at);
                if (has && at < s.D) parts[p] = load<n>(from + at);
            }
#pragma unroll
            for (int p = 0; p < packs; ++p) {
                const int64_t at = d + p * lanes * n;
                if (at >= s.D) continue;
#pragma unroll
                for (int j = 0; j < n; ++j) {
                    const float sum = had ? to_float(sums[p].x[j]) : 0.0f,
                                part = has ? to_float(parts[p].x[j]) : 0.0f;
                    sums[p].x[j] = from_float<O>(sum + block_share * (part - sum));
                }
                store(to + at, sums[p]);
            }
        }
    }
}

}  // namespace

void attention_merge(Tensor o, Tensor lse, const Tensor& o_block, const Tensor& lse_block,
                     int64_t first) {
    const MergeSizes s = merge_sizes(o, lse, o_block, lse_block, first);
    OpSpan span("attention_merge", 3.0 * double(o_block.numel()),
                2.0 * double(o_block.numel() * dtype_bytes(o.dtype())) +
                    bytes_of(o_block, lse_block, lse_block, lse_block));
    with_type(o.dtype(), [&]<class O>(O) {
        with_type(o_block.dtype(), [&]<class P>(P) {
            constexpr int n = std::min(pack_size<O>, pack_size<P>);
            const bool packs = packs_fit<O>(s.D, {o.data()}) && packs_fit<P>(s.D, {o_block.data()});
            const auto kernel = packs ? merge_rows<n, O, P> : merge_rows<1, O, P>;
            LAUNCH(kernel, unsigned(ceil_div(s.B * s.H * ceil_div(s.Tb, 32), threads / 32)),
                   threads, 0)
            (data<O>(o), data<float>(lse), data<P>(o_block), data<float>(lse_block), s, first);
        });
    });
}

}  // namespace ultrascale::ops
