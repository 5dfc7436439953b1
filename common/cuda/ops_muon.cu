// Muon's element-wise passes. All are memory-bound; a thread has one element after the other, a
// grid apart. (The products between them take far longer.)
#include "core/ops_muon.h"
#include "core/ops_muon_checks.h"
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;
unsigned blocks_for(int64_t n) { return unsigned(std::min<int64_t>(ceil_div(n, threads), 4096)); }

// Calls body(i) for this thread's elements.
template <class Body>
__device__ void for_each_element(int64_t n, const Body& body) {
    for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < n;
         i += int64_t(gridDim.x) * threads)
        body(i);
}

template <class G>
__global__ void __launch_bounds__(threads)
    nesterov_kernel(float* direction, float* momentum, const G* gradient, int64_t n, float beta,
                    const double* squared_norm, float max_norm) {
    const float clip = clip_factor(squared_norm, max_norm);
    for_each_element(n, [&](int64_t i) {
        const float g = to_float(gradient[i]) * clip;
        float m = momentum[i];
        m += (1.0f - beta) * (g - m);
        momentum[i] = m;
        direction[i] = g + beta * (m - g);
    });
}

template <class T>
__global__ void __launch_bounds__(threads)
    divide_kernel(T* x, const float* from, int64_t n, const double* squared_norm) {
    const float factor = float(1 / fmax(sqrt(*squared_norm), 1e-7));
    for_each_element(n, [&](int64_t i) { x[i] = from_float<T>(from[i] * factor); });
}

template <class T>
__global__ void __launch_bounds__(threads)
    polynomial_kernel(T* gram, const T* squared, int64_t m, float a, float b, float c) {
    for_each_element(m * m, [&](int64_t i) {
        const float diagonal = i / m == i % m ? a : 0;
        gram[i] = from_float<T>(diagonal + b * to_float(gram[i]) + c * to_float(squared[i]));
    });
}

template <class T>
__global__ void __launch_bounds__(threads)
    move_kernel(T* value, float* master, const T* direction, int64_t n, float keep, float step) {
    for_each_element(n, [&](int64_t i) {
        const float w = keep * master[i] - step * to_float(direction[i]);
        master[i] = w;
        value[i] = from_float<T>(w);
    });
}

}  // namespace

void nesterov(Tensor direction, Tensor momentum, const Tensor& gradient, float beta,
              const Tensor& squared_norm, float max_norm) {
    const int64_t n = direction.numel();
    const OpSpan span = nesterov_span(direction, momentum, gradient);
    const double* norm = max_norm > 0 ? squared_norm.as<double>() : nullptr;
    with_type(gradient.dtype(), [&]<class G>(G) {
        LAUNCH(nesterov_kernel<G>, blocks_for(n), threads, 0)
        (direction.as<float>(), momentum.as<float>(), data<G>(gradient), n, beta, norm, max_norm);
    });
}

void divide_by_norm(Tensor x, const Tensor& from, const Tensor& squared_norm) {
    const int64_t n = x.numel();
    const OpSpan span = divide_by_norm_span(x, from);
    with_type(x.dtype(), [&]<class T>(T) {
        LAUNCH(divide_kernel<T>, blocks_for(n), threads, 0)
        (data<T>(x), from.as<float>(), n, squared_norm.as<double>());
    });
}

void polynomial(Tensor gram, const Tensor& squared, float a, float b, float c) {
    const int64_t m = gram.rows();
    const OpSpan span = polynomial_span(gram, squared);
    with_type(gram.dtype(), [&]<class T>(T) {
        LAUNCH(polynomial_kernel<T>, blocks_for(m * m), threads, 0)
        (data<T>(gram), data<T>(squared), m, a, b, c);
    });
}

void move_weights(Tensor value, Tensor master, const Tensor& direction, float keep, float step) {
    const int64_t n = value.numel();
    const OpSpan span = move_weights_span(value, master, direction);
    with_type(value.dtype(), [&]<class T>(T) {
        LAUNCH(move_kernel<T>, blocks_for(n), threads, 0)
        (data<T>(value), master.as<float>(), data<T>(direction), n, keep, step);
    });
}

}  // namespace ultrascale::ops
