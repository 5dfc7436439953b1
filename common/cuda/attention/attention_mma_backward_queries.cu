// The second half of the backward: dQ = scale dS K. A block owns 128 queries of one head, a warp 32
// of them, and loops over their keys. It computes S and dP again; attention_mma_backward_keys.cu
// explains why.
#include "attention.cuh"
#include "cuda/mma.cuh"
#include "cuda/ops_common.cuh"

namespace ultrascale::ops {

namespace {

template <int D>
struct QueryBlock {
    static constexpr int queries = 128, keys = D == 64 ? 64 : 32, step = 32, warps = 4,
                         threads = 32 * warps, tiles = queries / warps / 16;
    static constexpr size_t shared_bytes = (2 * queries + 4 * keys) * D * sizeof(Element);
};

template <int D>
__global__ void __launch_bounds__(QueryBlock<D>::threads, 2)
    backward_queries(Element* dq, AttentionBackwardInputs in, AttentionSizes s, DeviceMask mask) {
    using Block = QueryBlock<D>;
    constexpr int tiles = Block::tiles, keys = Block::keys, step = Block::step,
                  threads = Block::threads;
    extern __shared__ __align__(128) unsigned char shared[];
    Element *q_tile = reinterpret_cast<Element*>(shared), *dout_tile = q_tile + Block::queries * D,
            *stages = dout_tile + Block::queries * D;
    const auto k_tile = [&](int stage) { return stages + stage * 2 * keys * D; };
    const auto v_tile = [&](int stage) { return k_tile(stage) + keys * D; };

    const int blocks = int((s.Tq + Block::queries - 1) / Block::queries),
              head_index = int(blockIdx.x) / blocks;
    const int first = (blocks - 1 - int(blockIdx.x) % blocks) * Block::queries;  // long rows first
    const int b = head_index / int(s.H), h = head_index % int(s.H);
    const int64_t q_stride = s.H * D, k_stride = s.K * D;
    const int64_t q_begin = (b * s.Tq * s.H + h) * D,
                  k_begin = (b * s.Tk * s.K + h / (s.H / s.K)) * D;
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4,
              t = lane % 4, row = warp * 16 * tiles;

    float log2_sum[tiles][2], delta[tiles][2];
#pragma unroll
    for (int m = 0; m < tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int i = first + row + m * 16 + r * 8 + g;
            const int64_t at = (b * s.H + h) * s.Tq + (i < s.Tq ? i : 0);
            log2_sum[m][r] = log2_sum_of(in.lse[at]);
            delta[m][r] = in.delta[at];
        }
    const BlockRange range = mask.template block_range<Block::queries>(b, first);

    const auto load = [&](int stage, int n) {
        load_tile<keys, D, threads>(k_tile(stage), in.k + k_begin, k_stride, n, s.Tk);
        load_tile<keys, D, threads>(v_tile(stage), in.v + k_begin, k_stride, n, s.Tk);
        copy_async_commit();
    };
    load_tile<Block::queries, D, threads>(q_tile, in.q + q_begin, q_stride, first, s.Tq);
    load_tile<Block::queries, D, threads>(dout_tile, in.dout + q_begin, q_stride, first, s.Tq);
    copy_async_commit();
    const int n_begin = range.lowest_begin / keys * keys;
    if (n_begin < range.highest_end) load(0, n_begin);

    float dq_sum[tiles][D / 8][4] = {};
    const float factor = s.scale() * log2_e;
    for (int n = n_begin, stage = 0; n < range.highest_end; n += keys, stage = 1 - stage) {
        copy_async_wait<0>();
        __syncthreads();
        if (n + keys < range.highest_end) load(1 - stage, n + keys);
#pragma unroll 1
        for (int sub = 0; sub < keys; sub += step) {
            float p[tiles][step / 8][4] = {},
                                  ds[tiles][step / 8][4];  // scores and dP - delta first
#pragma unroll
            for (int m = 0; m < tiles; ++m)
#pragma unroll
                for (int j = 0; j < step / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) ds[m][j][e] = -delta[m][e / 2];
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk) {
                uint32_t q_a[tiles][4], dout_a[tiles][4];
#pragma unroll
                for (int m = 0; m < tiles; ++m) {
                    load_a<D>(q_a[m], q_tile, row + m * 16, kk);
                    load_a<D>(dout_a[m], dout_tile, row + m * 16, kk);
                }
#pragma unroll
                for (int j = 0; j < step / 16; ++j) {
                    uint32_t k_b[4], v_b[4];
                    load_b_rows<D>(k_b, k_tile(stage), sub + j * 16, kk);
                    load_b_rows<D>(v_b, v_tile(stage), sub + j * 16, kk);
#pragma unroll
                    for (int m = 0; m < tiles; ++m) {
                        mma_pair(p[m], j, q_a[m], k_b);
                        mma_pair(ds[m], j, dout_a[m], v_b);
                    }
                }
            }
            if (n + sub < range.highest_begin || n + sub + step > range.lowest_end)
#pragma unroll
                for (int m = 0; m < tiles; ++m)
#pragma unroll
                    for (int r = 0; r < 2; ++r) {
                        int begin, end;
                        mask.range(b, first + row + m * 16 + r * 8 + g, begin, end);
#pragma unroll
                        for (int j = 0; j < step / 8; ++j)
#pragma unroll
                            for (int e = 0; e < 2; ++e) {
                                const int key = n + sub + j * 8 + 2 * t + e;
                                if (key < begin || key >= end) p[m][j][2 * r + e] = -INFINITY;
                            }
                    }
#pragma unroll
            for (int m = 0; m < tiles; ++m)
#pragma unroll
                for (int j = 0; j < step / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e)
                        ds[m][j][e] *= exp2_fast(p[m][j][e] * factor - log2_sum[m][e / 2]);
#pragma unroll
            for (int kk = 0; kk < step / 16; ++kk) {
                uint32_t ds_a[tiles][4];
#pragma unroll
                for (int m = 0; m < tiles; ++m) as_a(ds_a[m], ds[m][2 * kk], ds[m][2 * kk + 1]);
#pragma unroll
                for (int j = 0; j < D / 16; ++j) {
                    uint32_t k_b[4];
                    load_b_columns<D>(k_b, k_tile(stage), sub + kk * 16, j);
#pragma unroll
                    for (int m = 0; m < tiles; ++m) mma_pair(dq_sum[m], j, ds_a[m], k_b);
                }
            }
        }
    }
    copy_async_wait<0>();
    __syncthreads();

    const float scale = s.scale();
#pragma unroll
    for (int m = 0; m < tiles; ++m) store_c<D>(q_tile, row + m * 16, dq_sum[m], scale, scale);
    store_rows<16 * tiles, D>(q_tile, row, dq + q_begin, q_stride, first + row, s.Tq);
}

template <int D>
void launch(Element* dq, const AttentionBackwardInputs& in, const AttentionSizes& s,
            const DeviceMask& mask) {
    LAUNCH(backward_queries<D>, unsigned(ceil_div(s.Tq, QueryBlock<D>::queries) * s.B * s.H),
           QueryBlock<D>::threads, QueryBlock<D>::shared_bytes)
    (dq, in, s, mask);
}

}  // namespace

void attention_backward_queries_mma(__nv_bfloat16* dq, const AttentionBackwardInputs& in,
                                    const AttentionSizes& s, const DeviceMask& mask) {
    (s.D == 64 ? launch<64> : launch<128>)(dq, in, s, mask);
}

}  // namespace ultrascale::ops
