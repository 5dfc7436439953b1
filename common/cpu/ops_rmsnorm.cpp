// RMSNorm: y = x * rstd * weight with rstd = 1 / sqrt(mean(x^2) + eps).
//
// With xhat = x * rstd and g = dy * weight:
//   dx = rstd * (g - xhat * mean(g * xhat)),  dweight = sum over rows of dy * xhat.
#include "block_sums.h"

namespace ultrascale::ops {

namespace {

template <class T>
void forward(T* y, float* rstd, const T* x, const T* weight, float eps, int64_t N, int64_t h) {
#pragma omp parallel for if (N * h > parallel_threshold)
    for (int64_t n = 0; n < N; ++n) {
        const T* row = x + n * h;
        T* out = y + n * h;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < h; ++i) squares += float(row[i]) * float(row[i]);
        const float r = 1.0f / std::sqrt(squares / float(h) + eps);
        rstd[n] = r;
#pragma omp simd
        for (int64_t i = 0; i < h; ++i) store(out[i], float(row[i]) * r * float(weight[i]));
    }
}

// Computes a row of dx, and adds the row's part of the weight's gradient to dweight (h) fp32.
// dresidual may be null, or dx itself.
template <class T>
void backward_row(T* dx, float* dweight, const T* dy, const T* x, float rstd, const T* weight,
                  const T* dresidual, int64_t h) {
    float dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < h; ++i) dot += float(dy[i]) * float(weight[i]) * float(x[i]);
    const float mean = dot * rstd / float(h);
    if (dresidual) {
#pragma omp simd
        for (int64_t i = 0; i < h; ++i) {
            const float d = float(dy[i]), xhat = float(x[i]) * rstd;
            dweight[i] += d * xhat;
            store(dx[i], float(dresidual[i]) + rstd * (d * float(weight[i]) - xhat * mean));
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < h; ++i) {
            const float d = float(dy[i]), xhat = float(x[i]) * rstd;
            dweight[i] += d * xhat;
            store(dx[i], rstd * (d * float(weight[i]) - xhat * mean));
        }
    }
}

}  // namespace

void rmsnorm_forward(Tensor y, Tensor rstd, const Tensor& x, const Tensor& weight, float eps) {
    const int64_t N = x.rows(), h = x.cols();
    check(y.numel() == N * h && rstd.numel() == N && weight.numel() == h,
          "rmsnorm_forward: y, x (N, h), rstd (N), weight (h)");
    OpSpan span("rmsnorm_forward", 4.0 * double(N * h), bytes_of(y, rstd, x, weight));
    with_type(x.dtype(), [&]<class T>(T) {
        forward(y.as<T>(), rstd.as<float>(), x.as<T>(), weight.as<T>(), eps, N, h);
    });
}

void rmsnorm_backward(Tensor dx, Tensor dweight, const Tensor& dy, const Tensor& x,
                      const Tensor& rstd, const Tensor& weight, const Tensor& dresidual, bool add) {
    const int64_t N = x.rows(), h = x.cols();
    check(dx.numel() == N * h && dy.numel() == N * h, "rmsnorm_backward: dx, dy, x are (N, h)");
    check(rstd.numel() == N && weight.numel() == h && dweight.numel() == h,
          "rmsnorm_backward: rstd (N), weight, dweight (h)");
    check(!dresidual || dresidual.numel() == N * h, "rmsnorm_backward: dresidual is (N, h)");
    OpSpan span("rmsnorm_backward", 10.0 * double(N * h),
                bytes_of(dx, dy, x, rstd, weight, dweight) + (dresidual ? bytes_of(dresidual) : 0));
    const int64_t block = rows_per_block(N), blocks = (N + block - 1) / block;
    Tensor sums = Tensor::zeros({blocks, h}, DType::fp32, Memory::workspace);
    float* partial = sums.as<float>();
    with_type(x.dtype(), [&]<class T>(T) {
        T* dx_data = dx.as<T>();
        const T *dy_data = dy.as<T>(), *x_data = x.as<T>(), *w = weight.as<T>();
        const T* residual = dresidual ? dresidual.as<T>() : nullptr;
        const float* r = rstd.as<float>();
#pragma omp parallel for if (N * h > parallel_threshold)
        for (int64_t b = 0; b < blocks; ++b)
            for (int64_t n = b * block; n < std::min(N, (b + 1) * block); ++n)
                backward_row(dx_data + n * h, partial + b * h, dy_data + n * h, x_data + n * h,
                             r[n], w, residual ? residual + n * h : nullptr, h);
    });
    add_blocks(dweight, partial, blocks, h, add);
}

}  // namespace ultrascale::ops
