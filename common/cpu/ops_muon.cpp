// Muon's element-wise passes.
#include "core/ops_muon.h"

#include "core/ops_adamw.h"
#include "core/ops_muon_checks.h"
#include "ops_common.h"

namespace ultrascale::ops {

void nesterov(Tensor direction, Tensor momentum, const Tensor& gradient, float beta,
              const Tensor& squared_norm, float max_norm) {
    const int64_t n = direction.numel();
    const OpSpan span = nesterov_span(direction, momentum, gradient);
    const auto clip = float(clip_factor(squared_norm, max_norm));
    float *out = direction.as<float>(), *m = momentum.as<float>();
    with_type(gradient.dtype(), [&]<class G>(G) {
        const G* gradients = gradient.as<G>();
#pragma omp parallel for simd if (n > parallel_threshold)
        for (int64_t i = 0; i < n; ++i) {
            const float g = float(gradients[i]) * clip;
            m[i] += (1.0f - beta) * (g - m[i]);
            out[i] = g + beta * (m[i] - g);
        }
    });
}

void divide_by_norm(Tensor x, const Tensor& from, const Tensor& squared_norm) {
    const int64_t n = x.numel();
    const OpSpan span = divide_by_norm_span(x, from);
    const float factor = float(1 / std::max(std::sqrt(*squared_norm.as<double>()), 1e-7));
    const float* values = from.as<float>();
    with_type(x.dtype(), [&]<class T>(T) {
        T* out = x.as<T>();
#pragma omp parallel for simd if (n > parallel_threshold)
        for (int64_t i = 0; i < n; ++i) store(out[i], values[i] * factor);
    });
}

void polynomial(Tensor gram, const Tensor& squared, float a, float b, float c) {
    const int64_t m = gram.rows();
    const OpSpan span = polynomial_span(gram, squared);
    with_type(gram.dtype(), [&]<class T>(T) {
        T* g = gram.as<T>();
        const T* s = squared.as<T>();
#pragma omp parallel for if (m * m > parallel_threshold)
        for (int64_t i = 0; i < m; ++i)
#pragma omp simd
            for (int64_t j = 0; j < m; ++j)
                store(g[i * m + j],
                      (i == j ? a : 0) + b * float(g[i * m + j]) + c * float(s[i * m + j]));
    });
}

void move_weights(Tensor value, Tensor master, const Tensor& direction, float keep, float step) {
    const int64_t n = value.numel();
    const OpSpan span = move_weights_span(value, master, direction);
    float* weights = master.as<float>();
    with_type(value.dtype(), [&]<class T>(T) {
        T* out = value.as<T>();
        const T* d = direction.as<T>();
#pragma omp parallel for simd if (n > parallel_threshold)
        for (int64_t i = 0; i < n; ++i) {
            const float w = keep * weights[i] - step * float(d[i]);
            weights[i] = w;
            store(out[i], w);
        }
    });
}

}  // namespace ultrascale::ops
