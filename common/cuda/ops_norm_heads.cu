// RMSNorm of each head of q and k. There is a warp for each head of a token; it reads the head's D
// elements twice, the second time from L1. Forward reads and writes qkv once; backward reads qkv
// and the gradient and writes it, except for v's.
#include "column_sums.cuh"
#include "core/ops_norm_heads.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256, warps = threads / 32;

template <int n, class T>
__global__ void __launch_bounds__(threads)
    forward(T* out, float* rstd, const T* in, const T* q_weight, const T* k_weight, float eps,
            const HeadSizes s) {
    const int lane = int(threadIdx.x) % 32;
    const int64_t i = int64_t(blockIdx.x) * warps + int(threadIdx.x) / 32;
    if (i >= s.N * s.all) return;
    const int64_t head = i % s.all;
    const bool normed = head < s.H + s.K;
    const T *x = in + i * s.D, *weight = head < s.H ? q_weight : k_weight;
    T* y = out + i * s.D;
    float squares = 0;
    for (int64_t c = lane * n; normed && c < s.D; c += 32 * n) {
        const auto pack = load<n>(x + c);
#pragma unroll
        for (int j = 0; j < n; ++j) squares += to_float(pack.x[j]) * to_float(pack.x[j]);
    }
    const float r = 1.0f / sqrtf(warp_sum(squares) / float(s.D) + eps);
    if (normed && lane == 0) rstd[i / s.all * (s.H + s.K) + head] = r;
    for (int64_t c = lane * n; c < s.D; c += 32 * n) {
        auto pack = load<n>(x + c);
        if (normed) {
            const auto w = load<n>(weight + c);
#pragma unroll
            for (int j = 0; j < n; ++j)
                pack.x[j] = from_float<T>(to_float(pack.x[j]) * r * to_float(w.x[j]));
        }
        store(y + c, pack);
    }
}

// Each warp takes heads of the block's tokens and adds to its own sums in shared memory (2, D), for
// q's weight and k's; each lane has columns of its own. At the end the warps' sums are added in
// order.
template <class T>
__global__ void __launch_bounds__(threads)
    backward(T* d, float* q_sums, float* k_sums, const T* in, const float* rstd, const T* q_weight,
             const T* k_weight, const HeadSizes s) {
    DYNAMIC_SHARED(float, shared);  // (warps, 2, D)
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    float* const mine = shared + warp * 2 * s.D;
    for (int64_t c = lane; c < 2 * s.D; c += 32) mine[c] = 0;
    __syncwarp();  // below, a lane's columns are different ones
    const int64_t normed = s.H + s.K, step = int64_t(gridDim.x) * warps;
    for (int64_t i = int64_t(blockIdx.x) * warps + warp; i < s.N * normed; i += step) {
        const int64_t head = i % normed, at = (i / normed * s.all + head) * s.D;
        const T *x = in + at, *weight = head < s.H ? q_weight : k_weight;
        T* dy = d + at;
        float* const sums = mine + (head < s.H ? 0 : s.D);
        const float r = rstd[i];
        float dot = 0;
        for (int64_t c = lane; c < s.D; c += 32)
            dot += to_float(dy[c]) * to_float(weight[c]) * to_float(x[c]);
        const float mean = warp_sum(dot) * r / float(s.D);
        for (int64_t c = lane; c < s.D; c += 32) {
            const float g = to_float(dy[c]), xhat = to_float(x[c]) * r;
            sums[c] += g * xhat;
            dy[c] = from_float<T>(r * (g * to_float(weight[c]) - xhat * mean));
        }
    }
    __syncthreads();
    for (int64_t c = threadIdx.x; c < 2 * s.D; c += threads) {
        float sum = 0;
        for (int w = 0; w < warps; ++w) sum += shared[w * 2 * s.D + c];
        (c < s.D ? q_sums : k_sums)[blockIdx.x * s.D + (c < s.D ? c : c - s.D)] = sum;
    }
}

}  // namespace

void norm_heads_forward(Tensor out, Tensor rstd, const Tensor& qkv, const Tensor& q_weight,
                        const Tensor& k_weight, float eps) {
    const HeadSizes s = head_sizes(out, rstd, qkv, q_weight, k_weight);
    OpSpan span("norm_heads_forward", 4.0 * double(s.N * (s.H + s.K) * s.D),
                bytes_of(out, rstd, qkv));
    with_type(qkv.dtype(), [&]<class T>(T) {
        // 4 elements a lane: a head of 128 is one access of each lane.
        const bool fits =
            s.D % 4 == 0 && aligned16({out.data(), qkv.data(), q_weight.data(), k_weight.data()});
        LAUNCH((fits ? forward<4, T> : forward<1, T>), unsigned(ceil_div(s.N * s.all, warps)),
               threads, 0)
        (data<T>(out), rstd.as<float>(), data<T>(qkv), data<T>(q_weight), data<T>(k_weight), eps,
         s);
    });
}

void norm_heads_backward(Tensor d, Tensor dq_weight, Tensor dk_weight, const Tensor& qkv,
                         const Tensor& rstd, const Tensor& q_weight, const Tensor& k_weight,
                         bool add) {
    const HeadSizes s = head_sizes(d, rstd, qkv, q_weight, k_weight);
    check_weight_gradients(dq_weight, dk_weight, s);
    OpSpan span("norm_heads_backward", 10.0 * double(s.N * (s.H + s.K) * s.D),
                2 * bytes_of(d) + bytes_of(qkv, rstd));
    const int blocks =
        int(std::min<int64_t>(ceil_div(s.N * (s.H + s.K), warps), 4 * int64_t(multiprocessors())));
    const Tensor q_sums = Tensor::empty({blocks, s.D}, DType::fp32, Memory::workspace),
                 k_sums = Tensor::empty({blocks, s.D}, DType::fp32, Memory::workspace);
    with_type(qkv.dtype(), [&]<class T>(T) {
        LAUNCH(backward<T>, unsigned(blocks), threads, sizeof(float) * size_t(warps * 2 * s.D))
        (data<T>(d), q_sums.as<float>(), k_sums.as<float>(), data<T>(qkv), rstd.as<float>(),
         data<T>(q_weight), data<T>(k_weight), s);
    });
    const float *q = q_sums.as<float>(), *k = k_sums.as<float>();
    with_type(dq_weight.dtype(), [&]<class W>(W) {
        const auto add_up = [&](const Tensor& to, const float* sums) {
            LAUNCH(add_partials<W>, unsigned(ceil_div(s.D, 32)), dim3(32, 32), 0)
            (data<W>(to), sums, blocks, s.D, add);
        };
        add_up(dq_weight, q), add_up(dk_weight, k);
    });
}

}  // namespace ultrascale::ops
