// FlashAttention backward on tensor cores: bf16, head dimension 64 or 128. With P = exp(scale S - lse), dP = dO V^T and
// dS = P (dP - delta):
//     dV = P^T dO     dK = scale dS^T Q     one kernel: a block owns 128 keys and walks over the queries that see them
//     dQ = scale dS K                       the other: a block owns 128 queries and walks over their keys
// FlashAttention-2 does all three in one kernel of five products and adds dQ with atomics, in another order every time. Two
// kernels compute S and dP twice (seven products), but every sum has its order: the same bits in every run, which
// recomputation, resuming and debugging live on.
//
// The first kernel computes S^T = K Q^T, with keys as rows: then P^T and dS^T are where the next product wants them, in
// registers. Query heads that share a key head are added up in it.
#include "attention.cuh"
#include "mma.cuh"
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr float log2_e = 1.44269504f;

// 4 bytes to shared memory, or zero.
__device__ inline void copy_async_4(void* to, const void* from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(valid ? 4 : 0));
}

struct Inputs {
    const Element *dout, *q, *k, *v;
    const float *lse, *delta;
};

// ---- dK, dV ------------------------------------------------------------------------------------------------------------

template <int D>
struct KeyBlock {
    static constexpr int keys = 128, queries = 64, step = 32;  // queries that are loaded, and computed on, together
    static constexpr int warps = D == 64 ? 4 : 8, threads = 32 * warps, tiles = keys / warps / 16;
    static constexpr size_t shared_bytes = (2 * keys + 4 * queries) * D * sizeof(Element) + 2 * 3 * queries * sizeof(float);
};

template <int D>
__global__ void __launch_bounds__(KeyBlock<D>::threads, D == 64 ? 2 : 1)
    backward_keys(Element* dk, Element* dv, Inputs in, AttentionSizes s, DeviceMask mask) {
    using Block = KeyBlock<D>;
    constexpr int tiles = Block::tiles, queries = Block::queries, step = Block::step, threads = Block::threads;
    extern __shared__ __align__(128) unsigned char shared[];
    Element *k_tile = reinterpret_cast<Element*>(shared), *v_tile = k_tile + Block::keys * D, *stages = v_tile + Block::keys * D;
    float* rows = reinterpret_cast<float*>(stages + 4 * queries * D);
    const auto q_tile = [&](int stage) { return stages + stage * 2 * queries * D; };
    const auto dout_tile = [&](int stage) { return q_tile(stage) + queries * D; };
    const auto row_values = [&](int stage, int which) { return rows + (stage * 3 + which) * queries; };  // lse, delta, starts

    const int blocks = int((s.Tk + Block::keys - 1) / Block::keys), head_index = int(blockIdx.x) / blocks;
    const int first = int(blockIdx.x) % blocks * Block::keys, b = head_index / int(s.K), kv_head = head_index % int(s.K);
    const int group = int(s.H / s.K);
    const int64_t q_stride = s.H * D, k_stride = s.K * D, k_begin = (b * s.Tk * s.K + kv_head) * D;
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
    const int row = warp * 16 * tiles, warp_first = first + row, warp_last = warp_first + 16 * tiles - 1;

    // Queries that see any of these keys, rounded down to what is loaded together.
    const int i_begin = int(mask.first_query(first)) / queries * queries;
    const int per_head = i_begin < s.Tq ? int((s.Tq - i_begin + queries - 1) / queries) : 0, all = per_head * group;
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
            if (mask.starts) copy_async_4(row_values(stage, 2) + r, mask.starts + b * s.Tq + at, valid);
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
        __syncthreads();  // this stage is here, and nobody reads the other one any more
        if (index + 1 < all) load(1 - stage, index + 1);
#pragma unroll 1
        for (int sub = 0; sub < queries; sub += step) {
            if (mask.causal && mask.key_end(i + sub + step - 1) <= warp_first) continue;  // these queries come before these keys
            float p[tiles][step / 8][4] = {}, ds[tiles][step / 8][4] = {};                // scores and dP first
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
                        mma(p[m][2 * j], k_a[m], q_b[0], q_b[1]);
                        mma(p[m][2 * j + 1], k_a[m], q_b[2], q_b[3]);
                        mma(ds[m][2 * j], v_a[m], dout_b[0], dout_b[1]);
                        mma(ds[m][2 * j + 1], v_a[m], dout_b[2], dout_b[3]);
                    }
                }
            }
            const bool masked = mask.starts || (mask.causal && mask.key_end(i + sub) <= warp_last);
#pragma unroll
            for (int j = 0; j < step / 8; ++j)
#pragma unroll
                for (int e = 0; e < 2; ++e) {
                    const int column = sub + j * 8 + 2 * t + e;  // of the stage: one query
                    const float log2_sum = row_values(stage, 0)[column] * log2_e, delta = row_values(stage, 1)[column];
                    int begin = 0, end = INT_MAX;
                    if (masked) {
                        end = mask.key_end(i + column);
                        if (mask.starts) begin = __float_as_int(row_values(stage, 2)[column]) - int(mask.k_offset);
                    }
#pragma unroll
                    for (int m = 0; m < tiles; ++m)
#pragma unroll
                        for (int r = 0; r < 2; ++r) {
                            const int key = warp_first + m * 16 + r * 8 + g;
                            float& score = p[m][j][2 * r + e];
                            score = key >= begin && key < end ? exp2_fast(score * factor - log2_sum) : 0;
                            ds[m][j][2 * r + e] = score * (ds[m][j][2 * r + e] - delta);
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
                        mma(dv_sum[m][2 * j], p_a[m], dout_b[0], dout_b[1]);
                        mma(dv_sum[m][2 * j + 1], p_a[m], dout_b[2], dout_b[3]);
                        mma(dk_sum[m][2 * j], ds_a[m], q_b[0], q_b[1]);
                        mma(dk_sum[m][2 * j + 1], ds_a[m], q_b[2], q_b[3]);
                    }
                }
            }
        }
    }
    copy_async_wait<0>();
    __syncthreads();

    const float scale = s.scale();
#pragma unroll
    for (int m = 0; m < tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int j = 0; j < D / 8; ++j) {
                const int i = row + m * 16 + r * 8 + g;
                *reinterpret_cast<uint32_t*>(tile_chunk<D>(k_tile, i, j) + 2 * t) =
                    pack(dk_sum[m][j][2 * r] * scale, dk_sum[m][j][2 * r + 1] * scale);
                *reinterpret_cast<uint32_t*>(tile_chunk<D>(v_tile, i, j) + 2 * t) = pack(dv_sum[m][j][2 * r], dv_sum[m][j][2 * r + 1]);
            }
    store_rows<16 * tiles, D>(k_tile, row, dk + k_begin, k_stride, warp_first, s.Tk);
    store_rows<16 * tiles, D>(v_tile, row, dv + k_begin, k_stride, warp_first, s.Tk);
}

// ---- dQ ----------------------------------------------------------------------------------------------------------------

template <int D>
struct QueryBlock {
    static constexpr int queries = 128, keys = D == 64 ? 64 : 32, step = 32, warps = 4, threads = 32 * warps, tiles = queries / warps / 16;
    static constexpr size_t shared_bytes = (2 * queries + 4 * keys) * D * sizeof(Element);
};

template <int D>
__global__ void __launch_bounds__(QueryBlock<D>::threads, 2) backward_queries(Element* dq, Inputs in, AttentionSizes s, DeviceMask mask) {
    using Block = QueryBlock<D>;
    constexpr int tiles = Block::tiles, keys = Block::keys, step = Block::step, threads = Block::threads;
    extern __shared__ __align__(128) unsigned char shared[];
    Element *q_tile = reinterpret_cast<Element*>(shared), *dout_tile = q_tile + Block::queries * D,
            *stages = dout_tile + Block::queries * D;
    const auto k_tile = [&](int stage) { return stages + stage * 2 * keys * D; };
    const auto v_tile = [&](int stage) { return k_tile(stage) + keys * D; };

    const int blocks = int((s.Tq + Block::queries - 1) / Block::queries), head_index = int(blockIdx.x) / blocks;
    const int first = (blocks - 1 - int(blockIdx.x) % blocks) * Block::queries;  // long rows first
    const int b = head_index / int(s.H), h = head_index % int(s.H);
    const int64_t q_stride = s.H * D, k_stride = s.K * D;
    const int64_t q_begin = (b * s.Tq * s.H + h) * D, k_begin = (b * s.Tk * s.K + h / (s.H / s.K)) * D;
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4, row = warp * 16 * tiles;

    float log2_sum[tiles][2], delta[tiles][2];
#pragma unroll
    for (int m = 0; m < tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            const int i = first + row + m * 16 + r * 8 + g;
            const int64_t at = (b * s.H + h) * s.Tq + (i < s.Tq ? i : 0);
            log2_sum[m][r] = in.lse[at] * log2_e;
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
            float p[tiles][step / 8][4] = {}, ds[tiles][step / 8][4] = {};
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
                        mma(p[m][2 * j], q_a[m], k_b[0], k_b[1]);
                        mma(p[m][2 * j + 1], q_a[m], k_b[2], k_b[3]);
                        mma(ds[m][2 * j], dout_a[m], v_b[0], v_b[1]);
                        mma(ds[m][2 * j + 1], dout_a[m], v_b[2], v_b[3]);
                    }
                }
            }
            const bool masked = n + sub < range.highest_begin || n + sub + step > range.lowest_end;
#pragma unroll
            for (int m = 0; m < tiles; ++m)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    int begin = 0, end = INT_MAX;
                    if (masked) mask.range(b, first + row + m * 16 + r * 8 + g, begin, end);
#pragma unroll
                    for (int j = 0; j < step / 8; ++j)
#pragma unroll
                        for (int e = 2 * r; e < 2 * r + 2; ++e) {
                            const int key = n + sub + j * 8 + 2 * t + e % 2;
                            const bool visible = key >= begin && key < end;
                            const float probability = visible ? exp2_fast(p[m][j][e] * factor - log2_sum[m][r]) : 0;
                            ds[m][j][e] = probability * (ds[m][j][e] - delta[m][r]);
                        }
                }
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
                    for (int m = 0; m < tiles; ++m) {
                        mma(dq_sum[m][2 * j], ds_a[m], k_b[0], k_b[1]);
                        mma(dq_sum[m][2 * j + 1], ds_a[m], k_b[2], k_b[3]);
                    }
                }
            }
        }
    }
    copy_async_wait<0>();
    __syncthreads();

    const float scale = s.scale();
#pragma unroll
    for (int m = 0; m < tiles; ++m)
#pragma unroll
        for (int r = 0; r < 2; ++r)
#pragma unroll
            for (int j = 0; j < D / 8; ++j)
                *reinterpret_cast<uint32_t*>(tile_chunk<D>(q_tile, row + m * 16 + r * 8 + g, j) + 2 * t) =
                    pack(dq_sum[m][j][2 * r] * scale, dq_sum[m][j][2 * r + 1] * scale);
    store_rows<16 * tiles, D>(q_tile, row, dq + q_begin, q_stride, first + row, s.Tq);
}

template <int D>
void backward(Element* dq, Element* dk, Element* dv, const Inputs& in, const AttentionSizes& s, const DeviceMask& mask) {
    LAUNCH(backward_keys<D>, unsigned(ceil_div(s.Tk, KeyBlock<D>::keys) * s.B * s.K), KeyBlock<D>::threads, KeyBlock<D>::shared_bytes)
    (dk, dv, in, s, mask);
    LAUNCH(backward_queries<D>, unsigned(ceil_div(s.Tq, QueryBlock<D>::queries) * s.B * s.H), QueryBlock<D>::threads,
           QueryBlock<D>::shared_bytes)
    (dq, in, s, mask);
}

}  // namespace

void attention_backward_mma(const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dout, const Tensor& q, const Tensor& k,
                            const Tensor& v, const Tensor& lse, const Tensor& delta, const AttentionSizes& s, const DeviceMask& mask) {
    const Inputs in = {data<Element>(dout), data<Element>(q), data<Element>(k), data<Element>(v), data<float>(lse), data<float>(delta)};
    (s.D == 64 ? backward<64> : backward<128>)(data<Element>(dq), data<Element>(dk), data<Element>(dv), in, s, mask);
}

}  // namespace ultrascale::ops
