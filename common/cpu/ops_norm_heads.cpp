// RMSNorm of each head of q and k: the formulas of ops_rmsnorm.cpp, on rows of D.
#include "core/ops_norm_heads.h"

#include "block_sums.h"

namespace ultrascale::ops {

namespace {

template <class T>
void forward(T* out, float* rstd, const T* in, const T* q_weight, const T* k_weight, float eps,
             const HeadSizes& s) {
    const int64_t D = s.D;
#pragma omp parallel for if (s.N * s.all * D > parallel_threshold)
    for (int64_t n = 0; n < s.N; ++n)
        for (int64_t head = 0; head < s.all; ++head) {
            const T* x = in + (n * s.all + head) * D;
            T* y = out + (n * s.all + head) * D;
            if (head >= s.H + s.K) {
                std::copy(x, x + D, y);
                continue;
            }
            const T* weight = head < s.H ? q_weight : k_weight;
            float squares = 0;
#pragma omp simd reduction(+ : squares)
            for (int64_t i = 0; i < D; ++i) squares += float(x[i]) * float(x[i]);
            const float r = 1.0f / std::sqrt(squares / float(D) + eps);
            rstd[n * (s.H + s.K) + head] = r;
#pragma omp simd
            for (int64_t i = 0; i < D; ++i) store(y[i], float(x[i]) * r * float(weight[i]));
        }
}

// sums (2, D) are the gradients of q's and k's weights.
template <class T>
void backward_token(T* d, float* sums, const T* in, const float* rstd, const T* q_weight,
                    const T* k_weight, const HeadSizes& s) {
    const int64_t D = s.D;
    for (int64_t head = 0; head < s.H + s.K; ++head) {
        const T *x = in + head * D, *weight = head < s.H ? q_weight : k_weight;
        T* dy = d + head * D;
        float *sum = sums + (head < s.H ? 0 : D), dot = 0;
        const float r = rstd[head];
#pragma omp simd reduction(+ : dot)
        for (int64_t i = 0; i < D; ++i) dot += float(dy[i]) * float(weight[i]) * float(x[i]);
        const float mean = dot * r / float(D);
#pragma omp simd
        for (int64_t i = 0; i < D; ++i) {
            const float g = float(dy[i]), xhat = float(x[i]) * r;
            sum[i] += g * xhat;
            store(dy[i], r * (g * float(weight[i]) - xhat * mean));
        }
    }
}

}  // namespace

void norm_heads_forward(Tensor out, Tensor rstd, const Tensor& qkv, const Tensor& q_weight,
                        const Tensor& k_weight, float eps) {
    const HeadSizes s = head_sizes(out, rstd, qkv, q_weight, k_weight);
    OpSpan span("norm_heads_forward", 4.0 * double(s.N * (s.H + s.K) * s.D),
                bytes_of(out, rstd, qkv));
    with_type(qkv.dtype(), [&]<class T>(T) {
        forward(out.as<T>(), rstd.as<float>(), qkv.as<T>(), q_weight.as<T>(), k_weight.as<T>(), eps,
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
    const int64_t block = rows_per_block(s.N), blocks = (s.N + block - 1) / block;
    Tensor sums = Tensor::zeros({blocks, 2, s.D}, DType::fp32, Memory::workspace);
    float* partial = sums.as<float>();
    with_type(qkv.dtype(), [&]<class T>(T) {
        T* dy = d.as<T>();
        const T *x = qkv.as<T>(), *q = q_weight.as<T>(), *k = k_weight.as<T>();
        const float* r = rstd.as<float>();
#pragma omp parallel for if (s.N * s.all * s.D > parallel_threshold)
        for (int64_t b = 0; b < blocks; ++b)
            for (int64_t n = b * block; n < std::min(s.N, (b + 1) * block); ++n)
                backward_token(dy + n * s.all * s.D, partial + b * 2 * s.D, x + n * s.all * s.D,
                               r + n * (s.H + s.K), q, k, s);
    });
    add_blocks(dq_weight, partial, blocks, 2 * s.D, add);
    add_blocks(dk_weight, partial + s.D, blocks, 2 * s.D, add);
}

}  // namespace ultrascale::ops
