// The first half of the backward: dK and dV. FlashAttention on tensor cores, bf16, head dimension
// 64 or 128. With P = exp(scale S - lse), dP = dO V^T and dS = P (dP - delta):
//     dV = P^T dO     dK = scale dS^T Q     here: a block owns 128 keys and walks over the queries
//                                           that see them
//     dQ = scale dS K                       attention_mma_backward_queries.cu: a block owns 128
//                                           queries and walks over their keys
// FlashAttention-2 computes all three in one kernel of five products and adds dQ with atomics, in a
// different order every time. Two kernels compute S and dP twice (seven products), but every sum
// has a fixed order. So the bits are the same in every run; recomputation, resuming and debugging
// depend on that.
//
// This kernel computes S^T = K Q^T, with keys as rows: then P^T and dS^T are in registers in the
// form that the next product needs. It adds up the query heads that share a key head.
#include "attention.cuh"
#include "cuda/mma.cuh"
#include "cuda/ops_common.cuh"

namespace ultrascale::ops {

namespace {

// Copies 4 bytes to shared memory, or writes zeros if `valid` is false.
__device__ inline void copy_async_4(void* to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(valid ? 4 : 0));
}

template <int D>
struct KeyBlock {
    static constexpr int keys = 128, queries = 64,
                         step = 32;  // queries that are loaded, and computed on, together
    static constexpr int warps = D == 64 ? 4 : 8, threads = 32 * warps, tiles = keys / warps / 16;
    static constexpr size_t shared_bytes =
        (2 * keys + 4 * queries) * D * sizeof(Element) + 2 * 3 * queries * sizeof(float);
};

template <int D>
__global__ void __launch_bounds__(KeyBlock<D>::threads, D == 64 ? 2 : 1)
    backward_keys(Element* dk, Element* dv, AttentionBackwardInputs in, AttentionSizes s,
                  DeviceMask mask) {
    using Block = KeyBlock<D>;
    constexpr int tiles = Block::tiles, queries = Block::queries, step = Block::step,
                  threads = Block::threads;
    extern __shared__ __align__(128) unsigned char shared[];
    Element *k_tile = reinterpret_cast<Element*>(shared), *v_tile = k_tile + Block::keys * D,
            *stages = v_tile + Block::keys * D;
    float* rows = reinterpret_cast<float*>(stages + 4 * queries * D);
    const auto q_tile = [&](int stage) { return stages + stage * 2 * queries * D; };
    const auto dout_tile = [&](int stage) { return q_tile(stage) + queries * D; };
    const auto row_values = [&](int stage, int which) {
        return rows + (stage * 3 + which) * queries;
    };  // lse, delta, starts

    const int blocks = int((s.Tk + Block::keys - 1) / Block::keys),
              head_index = int(blockIdx.x) / blocks;
    const int first = int(blockIdx.x) % blocks * Block::keys, b = head_index / int(s.K),
              kv_head = head_index % int(s.K);
    const int group = int(s.H / s.K);
    const int64_t q_stride = s.H * D, k_stride = s.K * D, k_begin = (b * s.Tk * s.K + kv_head) * D;
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4,
              t = lane % 4;
    const int row = warp * 16 * tiles, warp_first = first + row,
              warp_last = warp_first + 16 * tiles - 1;

    // The first query that sees any of these keys, rounded down to a multiple of `queries`, because
    // that many are loaded together.
    const int i_begin = int(mask.first_query(first)) / queries * queries,
              i_end = mask.query_end(b, first + Block::keys);
    const int per_head = i_begin < i_end ? (i_end - i_begin + queries - 1) / queries : 0,
              all = per_head * group;
    const auto load = [&](int stage, int index) {
        const int h = kv_head * group + index / per_head, i = i_begin + index % per_head * queries;
        const int64_t begin = (b * s.Tq * s.H + h) * D, statistics = (b * s.H + h) * s.Tq;
        load_tile<queries, D, threads>(q_tile(stage), in.q + begin, q_stride, i, s.Tq);
        load_tile<queries, D, threads>(dout_tile(stage), in.dout + begin, q_stride, i, s.Tq);
        if (const int r = int(threadIdx.x); r < queries) {
            const bool valid = i + r < s.Tq;
            const int64_t at = valid ? i + r : 0;
            copy_async_4(row_values(stage, 0) + r, in.lse + statistics + at, valid);
            copy_async_4(row_values(stage, 1) + r, in.delta + statistics + at, valid);
            if (mask.starts)
                copy_async_4(row_values(stage, 2) + r, mask.starts + b * s.Tq + at, valid);
        }
        copy_async_commit();
    };
    load_tile<Block::keys, D, threads>(k_tile, in.k + k_begin, k_stride, first, s.Tk);
    load_tile<Block::keys, D, threads>(v_tile, in.v + k_begin, k_stride, first, s.Tk);
    copy_async_commit();
    if (all > 0) load(0, 0);

    float dk_sum[tiles][D / 8][4] = {}, dv_sum[tiles][D / 8][4] = {};
    const float factor = s.scale() * log2_e;
    for (int index = 0; index < all; ++index) {
        const int stage = index % 2, i = i_begin + index % per_head * queries;
        copy_async_wait<0>();
        __syncthreads();  // this stage has arrived, and the other one has been read
        if (index + 1 < all) load(1 - stage, index + 1);
#pragma unroll 1
        for (int sub = 0; sub < queries; sub += step) {
            if (mask.causal && mask.key_end(i + sub + step - 1) <= warp_first)
                continue;  // these queries come before these keys
            if (mask.starts &&
                __float_as_int(row_values(stage, 2)[sub]) - int(mask.k_offset) > warp_last)
                continue;                    // these keys come before what they see
            const int column = sub + 2 * t;  // this thread's first query in the stage
            float p[tiles][step / 8][4] = {},
                                  ds[tiles][step / 8][4];  // scores and dP - delta first
#pragma unroll
            for (int j = 0; j < step / 8; ++j) {
                const float2 delta =
                    *reinterpret_cast<const float2*>(row_values(stage, 1) + column + j * 8);
#pragma unroll
                for (int m = 0; m < tiles; ++m)
#pragma unroll
                    for (int e = 0; e < 4; ++e) ds[m][j][e] = e % 2 == 0 ? -delta.x : -delta.y;
            }
#pragma unroll
            for (int kk = 0; kk < D / 16; ++kk) {
                uint32_t k_a[tiles][4], v_a[tiles][4];
#pragma unroll
                for (int m = 0; m < tiles; ++m) {
                    load_a<D>(k_a[m], k_tile, row + m * 16, kk);
                    load_a<D>(v_a[m], v_tile, row + m * 16, kk);
                }
#pragma unroll
                for (int j = 0; j < step / 16; ++j) {
                    uint32_t q_b[4], dout_b[4];
                    load_b_rows<D>(q_b, q_tile(stage), sub + j * 16, kk);
                    load_b_rows<D>(dout_b, dout_tile(stage), sub + j * 16, kk);
#pragma unroll
                    for (int m = 0; m < tiles; ++m) {
                        mma_pair(p[m], j, k_a[m], q_b);
                        mma_pair(ds[m], j, v_a[m], dout_b);
                    }
                }
            }
            if (mask.starts || (mask.causal && mask.key_end(i + sub) <= warp_last))
#pragma unroll
                for (int j = 0; j < step / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        const int query = column + j * 8 + e % 2, end = mask.key_end(i + query);
                        const int begin =
                            mask.starts
                                ? __float_as_int(row_values(stage, 2)[query]) - int(mask.k_offset)
                                : 0;
#pragma unroll
                        for (int m = 0; m < tiles; ++m) {
                            const int key = warp_first + m * 16 + e / 2 * 8 + g;
                            if (key < begin || key >= end) p[m][j][e] = -INFINITY;
                        }
                    }
#pragma unroll
            for (int j = 0; j < step / 8; ++j) {
                const float2 lse =
                    *reinterpret_cast<const float2*>(row_values(stage, 0) + column + j * 8);
                const float log2_sum[2] = {log2_sum_of(lse.x), log2_sum_of(lse.y)};
#pragma unroll
                for (int m = 0; m < tiles; ++m)
#pragma unroll
                    for (int e = 0; e < 4; ++e) {
                        p[m][j][e] = exp2_fast(p[m][j][e] * factor - log2_sum[e % 2]);
                        ds[m][j][e] *= p[m][j][e];
                    }
            }
#pragma unroll
            for (int kk = 0; kk < step / 16; ++kk) {
                uint32_t p_a[tiles][4], ds_a[tiles][4];
#pragma unroll
                for (int m = 0; m < tiles; ++m) {
                    as_a(p_a[m], p[m][2 * kk], p[m][2 * kk + 1]);
                    as_a(ds_a[m], ds[m][2 * kk], ds[m][2 * kk + 1]);
                }
#pragma unroll
                for (int j = 0; j < D / 16; ++j) {
                    uint32_t q_b[4], dout_b[4];
                    load_b_columns<D>(dout_b, dout_tile(stage), sub + kk * 16, j);
                    load_b_columns<D>(q_b, q_tile(stage), sub + kk * 16, j);
#pragma unroll
                    for (int m = 0; m < tiles; ++m) {
                        mma_pair(dv_sum[m], j, p_a[m], dout_b);
                        mma_pair(dk_sum[m], j, ds_a[m], q_b);
                    }
                }
            }
        }
    }
    copy_async_wait<0>();
    __syncthreads();

    const float scale = s.scale();
#pragma unroll
    for (int m = 0; m < tiles; ++m) {
        store_c<D>(k_tile, row + m * 16, dk_sum[m], scale, scale);
        store_c<D>(v_tile, row + m * 16, dv_sum[m], 1, 1);
    }
    store_rows<16 * tiles, D>(k_tile, row, dk + k_begin, k_stride, warp_first, s.Tk);
    store_rows<16 * tiles, D>(v_tile, row, dv + k_begin, k_stride, warp_first, s.Tk);
}

template <int D>
void launch(Element* dk, Element* dv, const AttentionBackwardInputs& in, const AttentionSizes& s,
            const DeviceMask& mask) {
    LAUNCH(backward_keys<D>, unsigned(ceil_div(s.Tk, KeyBlock<D>::keys) * s.B * s.K),
           KeyBlock<D>::threads, KeyBlock<D>::shared_bytes)
    (dk, dv, in, s, mask);
}

}  // namespace

void attention_backward_keys_mma(__nv_bfloat16* dk, __nv_bfloat16* dv,
                                 const AttentionBackwardInputs& in, const AttentionSizes& s,
                                 const DeviceMask& mask) {
    (s.D == 64 ? launch<64> : launch<128>)(dk, dv, in, s, mask);
}

}  // namespace ultrascale::ops
