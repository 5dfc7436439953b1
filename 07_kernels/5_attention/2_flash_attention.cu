// FlashAttention (Dao et al. 2022, https://arxiv.org/abs/2205.14135): S exists only as one tile of
// 64 x 64 in registers.
//
// A block has 64 queries of one head and walks over the keys, 64 at a time. The usual softmax needs
// the whole row; the online softmax (4_fusion/2_softmax_two_passes.cu) works with the scores so
// far, and corrects its results when a larger score comes:
//
//                       K tiles  ->                        for each tile
//                 +---+---+---+---+                            S   = Q K^T / sqrt(D)
//                 |   |   |   |   |                            m'  = max(m, rows of S)
//      Q: 64 rows | 1 | 2 | 3 | . |  . : beyond the            P   = exp(S - m')
//                 +---+---+---+---+  diagonal                  sum = sum * exp(m - m') + rows of P
//        V tiles    1   2   3                                  O   =   O * exp(m - m') + P V
//                                                          at last O / sum
//
// Memory moves only q, k, v and o, and no bytes for the pairs of queries and keys. (k and v are
// read once for each 64 queries, from L2 if those of all heads fit into it.)
//
// The 256 threads form a grid of 16 x 16. Thread (x, y) computes queries 4y .. 4y + 3 for keys x, x
// + 16, x + 32, x + 48, and in O the same queries for four neighbouring columns of each 64. A value
// read from shared memory serves four products; otherwise shared memory would be the limit. Sixteen
// threads, half a warp, share a query: they find its maximum and its sum by shuffles, and P passes
// through shared memory within the warp.
#include <cuda_bf16.h>

#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

constexpr int tile = 64, across = 16, threads = across * across,
              own = tile / across;  // own: rows, and keys, of a thread

template <class T>
struct alignas(4 * sizeof(T)) Four {
    T x[4];
};
using FourHalf = Four<__nv_bfloat16>;
using FourFloat = Four<float>;

__device__ FourFloat to_floats(FourHalf from) {
    FourFloat to;
#pragma unroll
    for (int j = 0; j < 4; ++j) to.x[j] = __bfloat162float(from.x[j]);
    return to;
}

// The shared memory of a block. Rows are a little longer than necessary, so that threads which read
// the same column of different rows find them in different banks.
template <int D>
struct Shared {
    FourFloat q[tile][D / 4 + 1];  // fp32: it is converted once and read for each tile
    FourHalf k[tile][D / 4 + 1], v[tile][D / 4 + 1];
    float p[tile][tile + 4];
};

// `rows` of the tile's 64 rows exist; the others become 0. stride: elements from one row to the
// next.
template <int D, class T>
__device__ void load(Four<T> (&to)[tile][D / 4 + 1], const __nv_bfloat16* from, int64_t stride,
                     int64_t rows) {
    for (int i = int(threadIdx.x); i < tile * D / 4; i += threads) {
        const int row = i / (D / 4), column = i % (D / 4);
        FourHalf four = {};
        if (row < rows) four = *reinterpret_cast<const FourHalf*>(from + row * stride + column * 4);
        if constexpr (sizeof(T) == 4)
            to[row][column] = to_floats(four);
        else
            to[row][column] = four;
    }
}

template <int D>
__global__ void __launch_bounds__(threads, 2)
    attention(__nv_bfloat16* o, const __nv_bfloat16* q, const __nv_bfloat16* k,
              const __nv_bfloat16* v, int64_t T, int64_t H) {
    DYNAMIC_SHARED(float4, memory);
    Shared<D>& shared = *reinterpret_cast<Shared<D>*>(memory);
    const int x = int(threadIdx.x) % across, y = int(threadIdx.x) / across;
    // Where this head's rows lie.
    const int64_t stride = H * D,
                  begin = (int64_t(blockIdx.x) / H * T * H + int64_t(blockIdx.x) % H) * D;
    const int64_t first =
        int64_t(gridDim.y - 1 - blockIdx.y) * tile;  // the last queries first: they have most keys
    q += begin, k += begin, v += begin, o += begin;

    load<D>(shared.q, q + first * stride, stride, T - first);
    const float scale = 1.0f / sqrtf(float(D));

    float largest[own], sum[own] = {};  // for each query; sum: over this thread's keys only
    FourFloat out[own][D / tile] = {};
#pragma unroll
    for (int r = 0; r < own; ++r) largest[r] = -INFINITY;

    for (int64_t key = 0; key <= first; key += tile) {
        __syncthreads();  // the previous tiles have been read
        load<D>(shared.k, k + key * stride, stride, T - key);
        load<D>(shared.v, v + key * stride, stride, T - key);
        __syncthreads();

        float s[own][own] = {};  // (query, key)
#pragma unroll 4
        for (int d = 0; d < D / 4; ++d) {
            FourFloat queries[own];
#pragma unroll
            for (int r = 0; r < own; ++r) queries[r] = shared.q[y * own + r][d];
#pragma unroll
            for (int c = 0; c < own; ++c) {
                const FourFloat keys = to_floats(shared.k[x + c * across][d]);
#pragma unroll
                for (int r = 0; r < own; ++r)
#pragma unroll
                    for (int j = 0; j < 4; ++j) s[r][c] += queries[r].x[j] * keys.x[j];
            }
        }
#pragma unroll
        for (int r = 0; r < own; ++r) {
            float larger = largest[r];
#pragma unroll
            for (int c = 0; c < own; ++c) {
                // Right of the diagonal; this includes keys from T on.
                const bool hidden = key == first && x + c * across > y * own + r;
                s[r][c] = hidden ? -INFINITY : s[r][c] * scale;
                larger = fmaxf(larger, s[r][c]);
            }
            for (int i = across / 2; i > 0; i /= 2)
                larger = fmaxf(larger, __shfl_xor_sync(0xffffffffu, larger, i));
            const float factor = __expf(largest[r] - larger);  // the first time exp(-infinity) = 0
            largest[r] = larger, sum[r] *= factor;
#pragma unroll
            for (int c = 0; c < D / tile; ++c)
#pragma unroll
                for (int j = 0; j < 4; ++j) out[r][c].x[j] *= factor;
#pragma unroll
            for (int c = 0; c < own; ++c) {
                const float p = __expf(s[r][c] - larger);
                sum[r] += p;
                shared.p[y * own + r][x + c * across] = p;
            }
        }
        __syncwarp();  // a row of P is written and read by the same warp
#pragma unroll 2
        for (int j = 0; j < tile; j += 4) {
            FourFloat p[own];  // (query, key j .. j + 3)
#pragma unroll
            for (int r = 0; r < own; ++r)
                p[r] = *reinterpret_cast<const FourFloat*>(&shared.p[y * own + r][j]);
#pragma unroll
            for (int i = 0; i < 4; ++i)
#pragma unroll
                for (int c = 0; c < D / tile; ++c) {
                    const FourFloat values = to_floats(shared.v[j + i][c * across + x]);
#pragma unroll
                    for (int r = 0; r < own; ++r)
#pragma unroll
                        for (int l = 0; l < 4; ++l) out[r][c].x[l] += p[r].x[i] * values.x[l];
                }
        }
    }

#pragma unroll
    for (int r = 0; r < own; ++r) {
        for (int i = across / 2; i > 0; i /= 2) sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], i);
        const int64_t query = first + y * own + r;
#pragma unroll
        for (int c = 0; c < D / tile; ++c) {
            FourHalf result;
#pragma unroll
            for (int j = 0; j < 4; ++j) result.x[j] = __float2bfloat16_rn(out[r][c].x[j] / sum[r]);
            if (query < T)
                *reinterpret_cast<FourHalf*>(o + query * stride + c * tile + x * 4) = result;
        }
    }
}

void run(const Arguments& args) {
    const int64_t B = args.size[0], T = args.size[1], H = args.size[2], D = args.size[3];
    check(D == 64 || D == 128, "attention: a head dimension of 64 or 128");
    const auto half = [](const Tensor& tensor) {
        return static_cast<__nv_bfloat16*>(tensor.data());
    };
    const dim3 grid(unsigned(B * H), unsigned(ceil_div(T, tile)));
    const size_t bytes = D == 64 ? sizeof(Shared<64>) : sizeof(Shared<128>);
    LAUNCH(D == 64 ? attention<64> : attention<128>, grid, threads, bytes)
    (half(args.out), half(args.in[0]), half(args.in[1]), half(args.in[2]), T, H);
}

const Registered here{"attention", "tiles and online softmax: no S in memory", run};

}  // namespace
}  // namespace ultrascale::kernels
