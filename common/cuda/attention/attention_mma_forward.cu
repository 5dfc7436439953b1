// FlashAttention-2 forward on tensor cores (Dao 2023): bf16, head dimension 64 or 128.
//
// A block owns 128 queries of one head, a warp 32 of them, and loops over the keys 64 at a time:
//     S = Q K^T                        in registers
//     m' = max(m, rowmax S),  P = exp(scale (S - m')),  l = l exp(scale (m - m')) + rowsum P
//     O = O exp(scale (m - m')) + P V  P goes into the next product in registers (mma.cuh)
// and divides O by l at the end. While it computes on one pair of K and V tiles, the next pair is
// being loaded (cp.async). A warp's two tiles of 16 queries share each K and V fragment: with one
// tile per warp, shared memory could feed the tensor cores at only half their rate. FLOPs: 4 Tq Tk
// D per head, half of that if causal; memory: q, k, v, o once (other query blocks get k and v from
// L2).
#include "attention.cuh"
#include "cuda/mma.cuh"
#include "cuda/ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int query_rows = 128, key_rows = 64, warps = 4, threads = 32 * warps,
              tiles = query_rows / warps / 16;

template <int D>
constexpr size_t shared_bytes = (query_rows + 4 * key_rows) * D * sizeof(Element);

template <int D>
__global__ void __launch_bounds__(threads, 2)
    forward(Element* o, float* lse, const Element* q, const Element* k, const Element* v,
            AttentionSizes s, DeviceMask mask) {
    extern __shared__ __align__(128) unsigned char shared[];
    Element* q_tile = reinterpret_cast<Element*>(shared);
    Element* kv_tiles = q_tile + query_rows * D;  // K, V, then the next K, V
    const auto k_tile = [&](int stage) { return kv_tiles + stage * 2 * key_rows * D; };
    const auto v_tile = [&](int stage) { return k_tile(stage) + key_rows * D; };

    // Blocks with the longest causal rows come first, so that short blocks fill the gaps at the
    // end.
    const int blocks = int((s.Tq + query_rows - 1) / query_rows),
              head_index = int(blockIdx.x) / blocks;
    const int first = (blocks - 1 - int(blockIdx.x) % blocks) * query_rows;
    const int b = head_index / int(s.H), h = head_index % int(s.H);
    const int64_t q_stride = s.H * s.D, k_stride = s.K * s.D;
    const int64_t q_begin = (b * s.Tq * s.H + h) * s.D,
                  k_begin = (b * s.Tk * s.K + h / (s.H / s.K)) * s.D;
    q += q_begin, o += q_begin, k += k_begin, v += k_begin;

    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4,
              t = lane % 4;
    const int row = warp * 16 * tiles;  // of the q tile: this warp's first query
    const BlockRange range = mask.template block_range<query_rows>(b, first);

    float sum[tiles][2] = {}, highest[tiles][2], out[tiles][D / 8][4] = {};
#pragma unroll
    for (int m = 0; m < tiles; ++m) highest[m][0] = highest[m][1] = -INFINITY;
    const float factor = s.scale() * log2_e;  // exp(scale x) = 2^(factor x)

    const auto load = [&](int stage, int n) {
        load_tile<key_rows, D, threads>(k_tile(stage), k, k_stride, n, s.Tk);
        load_tile<key_rows, D, threads>(v_tile(stage), v, k_stride, n, s.Tk);
        copy_async_commit();
    };
    load_tile<query_rows, D, threads>(q_tile, q, q_stride, first, s.Tq);
    copy_async_commit();
    const int n_begin = range.lowest_begin / key_rows * key_rows;
    if (n_begin < range.highest_end) load(0, n_begin);

    for (int n = n_begin, stage = 0; n < range.highest_end; n += key_rows, stage = 1 - stage) {
        copy_async_wait<0>();
        __syncthreads();  // this stage has arrived, and the other one has been read
        if (n + key_rows < range.highest_end) load(1 - stage, n + key_rows);
        float score[tiles][key_rows / 8][4] = {};
#pragma unroll
        for (int kk = 0; kk < D / 16; ++kk) {
            uint32_t q_a[tiles][4];
#pragma unroll
            for (int m = 0; m < tiles; ++m) load_a<D>(q_a[m], q_tile, row + m * 16, kk);
#pragma unroll
            for (int j = 0; j < key_rows / 16; ++j) {
                uint32_t k_b[4];
                load_b_rows<D>(k_b, k_tile(stage), j * 16, kk);
#pragma unroll
                for (int m = 0; m < tiles; ++m) mma_pair(score[m], j, q_a[m], k_b);
            }
        }
        if (n < range.highest_begin || n + key_rows > range.lowest_end)
#pragma unroll
            for (int m = 0; m < tiles; ++m)
#pragma unroll
                for (int r = 0; r < 2; ++r) {
                    int begin, end;
                    mask.range(b, first + row + m * 16 + r * 8 + g, begin, end);
#pragma unroll
                    for (int j = 0; j < key_rows / 8; ++j)
#pragma unroll
                        for (int e = 0; e < 2; ++e) {
                            const int key = n + j * 8 + 2 * t + e;
                            if (key < begin || key >= end) score[m][j][2 * r + e] = -INFINITY;
                        }
                }
        float rescale[tiles][2];
        bool unchanged = true;
#pragma unroll
        for (int m = 0; m < tiles; ++m)
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float top = highest[m][r];
#pragma unroll
                for (int j = 0; j < key_rows / 8; ++j)
                    top = fmaxf(top, fmaxf(score[m][j][2 * r], score[m][j][2 * r + 1]));
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));  // four lanes share a row
                top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                const float shift = top == -INFINITY ? 0 : top * factor;
                rescale[m][r] = exp2_fast(highest[m][r] * factor - shift);
                unchanged = unchanged && top == highest[m][r];
                highest[m][r] = top;
                sum[m][r] *= rescale[m][r];
#pragma unroll
                for (int j = 0; j < key_rows / 8; ++j)
#pragma unroll
                    for (int e = 2 * r; e < 2 * r + 2; ++e) {
                        score[m][j][e] = exp2_fast(score[m][j][e] * factor - shift);
                        sum[m][r] += score[m][j][e];
                    }
            }
        if (!__all_sync(0xffffffffu,
                        unchanged))  // after the first blocks of keys a new maximum is rare
#pragma unroll
            for (int m = 0; m < tiles; ++m)
#pragma unroll
                for (int j = 0; j < D / 8; ++j)
#pragma unroll
                    for (int e = 0; e < 4; ++e) out[m][j][e] *= rescale[m][e / 2];
#pragma unroll
        for (int kk = 0; kk < key_rows / 16; ++kk) {
            uint32_t p_a[tiles][4];
#pragma unroll
            for (int m = 0; m < tiles; ++m) as_a(p_a[m], score[m][2 * kk], score[m][2 * kk + 1]);
#pragma unroll
            for (int j = 0; j < D / 16; ++j) {
                uint32_t v_b[4];
                load_b_columns<D>(v_b, v_tile(stage), kk * 16, j);
#pragma unroll
                for (int m = 0; m < tiles; ++m) mma_pair(out[m], j, p_a[m], v_b);
            }
        }
    }
    copy_async_wait<0>();
    __syncthreads();

    // Output goes through shared memory (the rows of the warp's own queries), so that whole rows
    // are written.
#pragma unroll
    for (int m = 0; m < tiles; ++m) {
        float inverse[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float l = sum[m][r];
            l += __shfl_xor_sync(0xffffffffu, l, 1);
            l += __shfl_xor_sync(0xffffffffu, l, 2);
            inverse[r] = l > 0 ? 1 / l : 0;
            const int i = row + m * 16 + r * 8 + g;
            if (t == 0 && first + i < s.Tq)
                lse[(b * s.H + h) * s.Tq + first + i] =
                    l > 0 ? highest[m][r] * s.scale() + logf(l) : -INFINITY;
        }
        store_c<D>(q_tile, row + m * 16, out[m], inverse[0], inverse[1]);
    }
    store_rows<16 * tiles, D>(q_tile, row, o, q_stride, first + row, s.Tq);
}

}  // namespace

bool attention_mma_supported(DType dtype, int64_t D) {
    return dtype == DType::bf16 && (D == 64 || D == 128);
}

void attention_forward_mma(const Tensor& o, const Tensor& lse, const Tensor& q, const Tensor& k,
                           const Tensor& v, const AttentionSizes& s, const DeviceMask& mask) {
    const dim3 grid = unsigned(ceil_div(s.Tq, query_rows) * s.B * s.H);
    const auto launch = [&](auto kernel, size_t shared) {
        LAUNCH(kernel, grid, threads, shared)
        (data<Element>(o), data<float>(lse), data<Element>(q), data<Element>(k), data<Element>(v),
         s, mask);
    };
    if (s.D == 64)
        launch(forward<64>, shared_bytes<64>);
    else
        launch(forward<128>, shared_bytes<128>);
}

}  // namespace ultrascale::ops
