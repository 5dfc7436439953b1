// LayerNorm, GELU, the gradient of a bias, and dropout with masks.
#include "core/ops_gpt.h"

#include "block_sums.h"

namespace ultrascale::ops {

namespace {

// ---- LayerNorm ----------------------------------------------------------------------------------

template <class T>
void normalise_row(T* y, float* statistics, const T* x, const T* weight, const T* bias, float eps,
                   int64_t h) {
    float sum = 0, squares = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < h; ++i) sum += float(x[i]);
    const float mean = sum / float(h);
#pragma omp simd reduction(+ : squares)
    for (int64_t i = 0; i < h; ++i) squares += (float(x[i]) - mean) * (float(x[i]) - mean);
    const float rstd = 1.0f / std::sqrt(squares / float(h) + eps);
    statistics[0] = mean, statistics[1] = rstd;
#pragma omp simd
    for (int64_t i = 0; i < h; ++i)
        store(y[i], (float(x[i]) - mean) * rstd * float(weight[i]) + float(bias[i]));
}

// With xhat = (x - mean) rstd and g = dy weight: dx = rstd (g - mean(g) - xhat mean(g xhat)).
// dresidual may be null, or dx itself. Adds to dweight and dbias (h) fp32.
template <class T>
void backward_row(T* dx, float* dweight, float* dbias, const T* dy, const T* x, float mean,
                  float rstd, const T* weight, const T* dresidual, int64_t h) {
    float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
    for (int64_t i = 0; i < h; ++i) {
        const float g = float(dy[i]) * float(weight[i]);
        sum += g, dot += g * (float(x[i]) - mean) * rstd;
    }
    sum /= float(h), dot /= float(h);
    const T* residual = dresidual ? dresidual : dy;  // read in any case, so that the loop is one
    const float factor = dresidual ? 1 : 0;
#pragma omp simd
    for (int64_t i = 0; i < h; ++i) {
        const float d = float(dy[i]), xhat = (float(x[i]) - mean) * rstd;
        dweight[i] += d * xhat, dbias[i] += d;
        store(dx[i],
              factor * float(residual[i]) + rstd * (d * float(weight[i]) - sum - xhat * dot));
    }
}

// ---- GELU ---------------------------------------------------------------------------------------

// GELU(x) = x s with s = sigmoid(2 u) = (1 + tanh u) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3).
constexpr float twice_root = 1.5957691216057308f, cubic = 0.044715f;
inline float gate(float x) {
    return 1.0f / (1.0f + exp_fast(-twice_root * (x + cubic * x * x * x)));
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
#pragma omp parallel for if (N * h > parallel_threshold)
        for (int64_t n = 0; n < N; ++n)
            normalise_row(y.as<T>() + n * h, statistics.as<float>() + 2 * n, x.as<T>() + n * h,
                          weight.as<T>(), bias.as<T>(), eps, h);
    });
}

void layernorm_backward(Tensor dx, Tensor dweight, Tensor dbias, const Tensor& dy, const Tensor& x,
                        const Tensor& statistics, const Tensor& weight, const Tensor& dresidual,
                        bool add) {
    const int64_t N = x.rows(), h = x.cols();
    check(dx.numel() == N * h && dy.numel() == N * h, "layernorm_backward: dx, dy, x are (N, h)");
    check(statistics.numel() == 2 * N && weight.numel() == h && dweight.numel() == h &&
              dbias.numel() == h,
          "layernorm_backward: statistics (N, 2), weight, dweight, dbias (h)");
    check(!dresidual || dresidual.numel() == N * h, "layernorm_backward: dresidual is (N, h)");
    OpSpan span("layernorm_backward", 14.0 * double(N * h),
                bytes_of(dx, dy, x, statistics, weight, dweight, dbias) +
                    (dresidual ? bytes_of(dresidual) : 0));
    const int64_t block = rows_per_block(N), blocks = (N + block - 1) / block;
    Tensor sums = Tensor::zeros({blocks, 2 * h}, DType::fp32, Memory::workspace);
    float* partial = sums.as<float>();
    with_type(x.dtype(), [&]<class T>(T) {
        const float* s = statistics.as<float>();
        const T* residual = dresidual ? dresidual.as<T>() : nullptr;
#pragma omp parallel for if (N * h > parallel_threshold)
        for (int64_t b = 0; b < blocks; ++b)
            for (int64_t n = b * block; n < std::min(N, (b + 1) * block); ++n)
                backward_row(dx.as<T>() + n * h, partial + b * 2 * h, partial + (b * 2 + 1) * h,
                             dy.as<T>() + n * h, x.as<T>() + n * h, s[2 * n], s[2 * n + 1],
                             weight.as<T>(), residual ? residual + n * h : nullptr, h);
    });
    add_blocks(dweight, partial, blocks, 2 * h, add);
    add_blocks(dbias, partial + h, blocks, 2 * h, add);
}

void gelu_forward(Tensor out, const Tensor& x) {
    const int64_t n = x.numel();
    check(out.numel() == n, "gelu_forward: x and out are of one size");
    OpSpan span("gelu_forward", 8.0 * double(n), bytes_of(out, x));
    with_type(x.dtype(), [&]<class T>(T) {
        const T* from = x.as<T>();
        T* to = out.as<T>();
#pragma omp parallel for simd if (n > parallel_threshold)
        for (int64_t i = 0; i < n; ++i) store(to[i], float(from[i]) * gate(float(from[i])));
    });
}

// GELU'(x) = s + x s (1 - s) 2 du/dx
void gelu_backward(Tensor dx, Tensor dout, const Tensor& x) {
    const int64_t n = x.numel();
    check(dx.numel() == n && dout.numel() == n, "gelu_backward: x, dx and dout are of one size");
    OpSpan span("gelu_backward", 16.0 * double(n), bytes_of(dx, dout, dout, x));
    with_type(x.dtype(), [&]<class T>(T) {
        const T* from = x.as<T>();
        T *to = dx.as<T>(), *d = dout.as<T>();
#pragma omp parallel for simd if (n > parallel_threshold)
        for (int64_t i = 0; i < n; ++i) {
            const float v = float(from[i]), s = gate(v), y = v * s;
            store(to[i],
                  float(d[i]) * (s + y * (1.0f - s) * twice_root * (1.0f + 3.0f * cubic * v * v)));
            store(d[i], y);
        }
    });
}

void column_sums(Tensor dbias, const Tensor& dy, const Tensor& addend) {
    const int64_t N = dy.rows(), n = dy.cols();
    check(dbias.numel() == n, "column_sums: dy is (N, n), dbias (n)");
    check(!addend || addend.data() == dbias.data(), "column_sums: adds to dbias or to nothing");
    OpSpan span("column_sums", double(N * n), bytes_of(dy, dbias));
    const int64_t block = rows_per_block(N), blocks = (N + block - 1) / block;
    Tensor sums = Tensor::zeros({blocks, n}, DType::fp32, Memory::workspace);
    with_type(dy.dtype(), [&]<class T>(T) {
        const T* from = dy.as<T>();
#pragma omp parallel for if (N * n > parallel_threshold)
        for (int64_t b = 0; b < blocks; ++b) {
            float* sum = sums.as<float>() + b * n;
            for (int64_t r = b * block; r < std::min(N, (b + 1) * block); ++r)
#pragma omp simd
                for (int64_t i = 0; i < n; ++i) sum[i] += float(from[r * n + i]);
        }
    });
    add_blocks(dbias, sums.as<float>(), blocks, n, bool(addend));
}

void dropout_mask(Tensor mask, float p, const Random& random, uint64_t first) {
    const int64_t n = mask.numel();
    OpSpan span("dropout_mask", double(n), bytes_of(mask));
    e4m3* keeps = mask.as<e4m3>();
    const auto last = first + uint64_t(n);
#pragma omp parallel for if (n > parallel_threshold / 16)
    for (uint64_t block = first / 4; block < (last + 3) / 4; ++block) {
        const auto uniforms = random.uniforms(block);
        for (uint64_t at = std::max(first, 4 * block); at < std::min(last, 4 * block + 4); ++at)
            store(keeps[at - first], uniforms[at % 4] > p ? 1.0f : 0.0f);
    }
}

void dropout_by_mask(Tensor y, const Tensor& mask, const Tensor& x, float p, const Tensor& addend) {
    const int64_t n = x.numel();
    check(y.numel() == n && mask.numel() == n && (!addend || addend.numel() == n),
          "dropout_by_mask: x, y, mask and the addend are of one size");
    OpSpan span("dropout_by_mask", 2.0 * double(n),
                bytes_of(y, x, mask) + (addend ? bytes_of(addend) : 0));
    const float factor = 1 / (1 - p);
    with_type(x.dtype(), [&]<class T>(T) {
        const T *from = x.as<T>(), *add = addend ? addend.as<T>() : nullptr;
        const e4m3* keeps = mask.as<e4m3>();
        T* to = y.as<T>();
#pragma omp parallel for if (n > parallel_threshold)
        for (int64_t i = 0; i < n; ++i) {
            const float kept = keeps[i].bits ? float(from[i]) * factor : 0.0f;
            store(to[i], kept + (add ? float(add[i]) : 0.0f));
        }
    });
}

}  // namespace ultrascale::ops
