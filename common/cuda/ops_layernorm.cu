// LayerNorm's forward: y = (x - mean) * rstd * weight + bias with rstd = 1 / sqrt(variance + eps).
// Reads x and writes y once; a warp (or, for long rows, a block) takes one row and keeps it in
// registers for the mean, the variance and the product.
#include "core/ops_gpt.h"
#include "rmsnorm_row.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

template <int group>
__device__ float group_sum(float x) {
    if constexpr (group == 32)
        return warp_sum(x);
    else
        return block_sum<group>(x);
}

// As RMSNorm's: `group` threads handle a row of h elements, at most group * packs_kept * n.
template <int group, int n, class T>
__global__ void __launch_bounds__(group == 32 ? 256 : group)
    forward_kept(T* y, float* statistics, const T* x, const T* weight, const T* bias, float eps,
                 int64_t N, int h) {
    const int64_t row = int64_t(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= N) return;  // the whole group
    x += row * h, y += row * h;
    float values[packs_kept][n], sum = 0, squares = 0;
#pragma unroll
    for (int p = 0; p < packs_kept; ++p) {
        to_floats(values[p], load_up_to<n>(x, (p * group + int(threadIdx.x)) * n, h));
#pragma unroll
        for (int j = 0; j < n; ++j) sum += values[p][j];
    }
    const float mean = group_sum<group>(sum) / float(h);
#pragma unroll
    for (int p = 0; p < packs_kept; ++p)
        if ((p * group + int(threadIdx.x)) * n < h)
#pragma unroll
            for (int j = 0; j < n; ++j)
                values[p][j] -= mean, squares += values[p][j] * values[p][j];
    const float rstd = rsqrtf(group_sum<group>(squares) / float(h) + eps);
    if (threadIdx.x == 0) statistics[2 * row] = mean, statistics[2 * row + 1] = rstd;
#pragma unroll
    for (int p = 0; p < packs_kept; ++p) {
        const int i = (p * group + int(threadIdx.x)) * n;
        if (i >= h) continue;
        float w[n], b[n];
        to_floats(w, load<n>(weight + i)), to_floats(b, load<n>(bias + i));
#pragma unroll
        for (int j = 0; j < n; ++j) w[j] = values[p][j] * rstd * w[j] + b[j];
        store(y + i, from_floats<T>(w));
    }
}

// Rows of any length and alignment, read three times (later from a cache).
template <class T>
__global__ void __launch_bounds__(threads)
    forward_any(T* y, float* statistics, const T* x, const T* weight, const T* bias, float eps,
                int64_t h) {
    const int64_t row = blockIdx.x;
    x += row * h, y += row * h;
    float sum = 0, squares = 0;
    for (int64_t i = threadIdx.x; i < h; i += threads) sum += to_float(x[i]);
    const float mean = block_sum<threads>(sum) / float(h);
    for (int64_t i = threadIdx.x; i < h; i += threads) {
        const float d = to_float(x[i]) - mean;
        squares += d * d;
    }
    const float rstd = rsqrtf(block_sum<threads>(squares) / float(h) + eps);
    if (threadIdx.x == 0) statistics[2 * row] = mean, statistics[2 * row + 1] = rstd;
    for (int64_t i = threadIdx.x; i < h; i += threads)
        y[i] =
            from_float<T>((to_float(x[i]) - mean) * rstd * to_float(weight[i]) + to_float(bias[i]));
}

}  // namespace

void layernorm_forward(Tensor y, Tensor statistics, const Tensor& x, const Tensor& weight,
                       const Tensor& bias, float eps) {
    const int64_t N = x.rows(), h = x.cols();
    check(y.numel() == N * h && statistics.numel() == 2 * N && weight.numel() == h &&
              bias.numel() == h,
          "layernorm_forward: y, x (N, h), statistics (N, 2), weight, bias (h)");
    OpSpan span("layernorm_forward", 7.0 * double(N * h), bytes_of(y, statistics, x, weight, bias));
    with_type(x.dtype(), [&]<class T>(T) {
        constexpr int n = pack_size<T>;
        T* to = data<T>(y);
        const T *from = data<T>(x), *w = data<T>(weight), *b = data<T>(bias);
        float* s = statistics.as<float>();
        if (!packs_fit<T>(h, {to, from, w, b}) || h > longest_kept<n>())
            LAUNCH(forward_any<T>, unsigned(N), threads, 0)(to, s, from, w, b, eps, h);
        else
            with_group<n>(N, h, [&](auto group, unsigned blocks, dim3 block) {
                LAUNCH((forward_kept<group, n, T>), blocks, block, 0)
                (to, s, from, w, b, eps, N, int(h));
            });
    });
}

}  // namespace ultrascale::ops
