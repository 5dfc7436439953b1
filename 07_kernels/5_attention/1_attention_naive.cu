// Attention exactly as in its formula: S = Q K^T / sqrt(D), P = softmax(S), O = P V. It is causal:
// query i sees the keys 0 .. i.
//
// Three kernels pass the T x T matrix of every head on through memory, here in fp32: 4096 tokens
// and 64 heads take 4.3 GB.
//
//     scores     32 x 32 of S a block     writes 4                    bytes for each pair of query
//                                                                     and key
//     softmax    a warp a row, in place   reads 4 + 4 + 4, writes 4
//     weigh      32 queries of O a block  reads 4                     together 24; q, k, v and o
//                                                                     are little beside it
//
//                       keys                     D
//                 +---+---+---+---+        +-----------+
//                 | x |   |   |   |        | V tile    |   x   a tile of S that is computed
//       queries   | x | x |   |   |   *    |           |       above the diagonal nothing is
//                 | x | x | x |   |        |           |       computed or read
//                 | x | x | x | x |        +-----------+
//                 +---+---+---+---+
#include <cuda_bf16.h>

#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

constexpr int tile = 32, rows_at_once = 8,
              rows_of_thread = tile / rows_at_once;  // a block is 32 x 8 threads

// Tensors are (B, T, H, D): a head's rows are H * D elements apart.
struct Heads {
    int64_t T, H, D;
    __device__ int64_t at(int64_t head, int64_t token) const {
        return ((head / H * T + token) * H + head % H) * D;
    }  // head: among B * H
};

__global__ void scores(float* S, const __nv_bfloat16* q, const __nv_bfloat16* k, Heads heads,
                       float scale) {
    __shared__ float q_tile[tile][tile + 1],
        k_tile[tile][tile + 1];  // a part of D at a time; + 1: a column is in 32 different banks
    const int64_t T = heads.T, head = blockIdx.z, first_query = int64_t(blockIdx.y) * tile,
                  first_key = int64_t(blockIdx.x) * tile;
    if (first_key > first_query) return;  // above the diagonal
    const int x = int(threadIdx.x), y = int(threadIdx.y);
    float sum[rows_of_thread] = {};
    for (int64_t d = 0; d < heads.D; d += tile) {
        for (int row = y; row < tile; row += rows_at_once) {
            const int64_t query = first_query + row, key = first_key + row;
            q_tile[row][x] = query < T ? __bfloat162float(q[heads.at(head, query) + d + x]) : 0.0f;
            k_tile[row][x] = key < T ? __bfloat162float(k[heads.at(head, key) + d + x]) : 0.0f;
        }
        __syncthreads();
        for (int i = 0; i < tile; ++i)
#pragma unroll
            for (int r = 0; r < rows_of_thread; ++r)
                sum[r] += q_tile[y + r * rows_at_once][i] * k_tile[x][i];
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < rows_of_thread; ++r) {
        const int64_t query = first_query + y + r * rows_at_once, key = first_key + x;
        if (query < T && key <= query) S[(head * T + query) * T + key] = sum[r] * scale;
    }
}

__global__ void softmax(float* S, int64_t rows, int64_t T) {
    const int64_t row = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32,
                  lane = threadIdx.x % 32, keys = row % T + 1;
    if (row >= rows) return;  // the whole warp
    float *s = S + row * T, largest = -INFINITY, sum = 0;
    for (int64_t j = lane; j < keys; j += 32) largest = fmaxf(largest, s[j]);
    for (int i = 16; i > 0; i /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, i));
    for (int64_t j = lane; j < keys; j += 32) sum += __expf(s[j] - largest);
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    for (int64_t j = lane; j < keys; j += 32) s[j] = __expf(s[j] - largest) / sum;
}

template <int D>
__global__ void weigh(__nv_bfloat16* o, const float* P, const __nv_bfloat16* v, Heads heads) {
    __shared__ float p_tile[tile][tile + 1], v_tile[tile][D];
    const int64_t T = heads.T, head = blockIdx.y, first_query = int64_t(blockIdx.x) * tile;
    const int x = int(threadIdx.x), y = int(threadIdx.y);
    float sum[rows_of_thread][D / tile] = {};
    for (int64_t first_key = 0; first_key <= first_query; first_key += tile) {
        for (int row = y; row < tile; row += rows_at_once) {
            const int64_t query = first_query + row, key = first_key + x, v_row = first_key + row;
            p_tile[row][x] = query < T && key <= query ? P[(head * T + query) * T + key] : 0.0f;
            for (int d = x; d < D; d += tile)
                v_tile[row][d] = v_row < T ? __bfloat162float(v[heads.at(head, v_row) + d]) : 0.0f;
        }
        __syncthreads();
        for (int j = 0; j < tile; ++j)
#pragma unroll
            for (int c = 0; c < D / tile; ++c)
#pragma unroll
                for (int r = 0; r < rows_of_thread; ++r)
                    sum[r][c] += p_tile[y + r * rows_at_once][j] * v_tile[j][x + c * tile];
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < rows_of_thread; ++r)
        if (const int64_t query = first_query + y + r * rows_at_once; query < T)
#pragma unroll
            for (int c = 0; c < D / tile; ++c)
                o[heads.at(head, query) + x + c * tile] = __float2bfloat16_rn(sum[r][c]);
}

void run(const Arguments& args) {
    const int64_t B = args.size[0], T = args.size[1], H = args.size[2], D = args.size[3];
    check(D == 64 || D == 128, "attention: a head dimension of 64 or 128");
    const auto half = [](const Tensor& tensor) {
        return static_cast<__nv_bfloat16*>(tensor.data());
    };
    const Tensor S = Tensor::empty({B, H, T, T}, DType::fp32, Memory::workspace);
    const unsigned tiles = unsigned(ceil_div(T, tile)), all_heads = unsigned(B * H);
    const dim3 threads(tile, rows_at_once);
    const Heads heads{T, H, D};
    LAUNCH(scores, dim3(tiles, tiles, all_heads), threads, 0)
    (S.as<float>(), half(args.in[0]), half(args.in[1]), heads, 1.0f / std::sqrt(float(D)));
    LAUNCH(softmax, unsigned(ceil_div(B * H * T, 8)), 256, 0)(S.as<float>(), B * H * T, T);
    const auto weigh_values = D == 64 ? weigh<64> : weigh<128>;
    LAUNCH(weigh_values, dim3(tiles, all_heads), threads, 0)
    (half(args.out), S.as<float>(), half(args.in[2]), heads);
}

const Registered here{"attention", "three kernels, S and P in memory", run};

}  // namespace
}  // namespace ultrascale::kernels
