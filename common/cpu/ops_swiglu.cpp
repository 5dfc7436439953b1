// SwiGLU: out = silu(gate) * up, silu(x) = x * sigmoid(x).
#include "ops_fp8.h"

namespace ultrascale::ops {

namespace {

inline float sigmoid(float x) { return 1.0f / (1.0f + exp_fast(-x)); }

// weights: one for each row, or null
template <class T>
void forward(T* out, const T* gate_up, const float* weights, int64_t N, int64_t F) {
#pragma omp parallel for if (N * F > parallel_threshold)
    for (int64_t n = 0; n < N; ++n) {
        const T *gate = gate_up + n * 2 * F, *up = gate + F;
        T* y = out + n * F;
        const float w = weights ? weights[n] : 1;
#pragma omp simd
        for (int64_t i = 0; i < F; ++i)
            store(y[i], w * (float(gate[i]) * sigmoid(float(gate[i])) * float(up[i])));
    }
}

// d silu(g) / dg = s + g s (1 - s) with s = sigmoid(g). With a weight w, dout is the gradient of w
// out.
template <class T>
void backward(T* dgate_up, T* dout, const T* gate_up, const float* weights, float* dweights,
              int64_t N, int64_t F) {
#pragma omp parallel for if (N * F > parallel_threshold)
    for (int64_t n = 0; n < N; ++n) {
        const T *gate = gate_up + n * 2 * F, *up = gate + F;
        T *dgate = dgate_up + n * 2 * F, *dup = dgate + F, *dy = dout + n * F;
        const float w = weights ? weights[n] : 1;
        float dot = 0;
#pragma omp simd reduction(+ : dot)
        for (int64_t i = 0; i < F; ++i) {
            float g = float(gate[i]), u = float(up[i]), d = float(dy[i]), s = sigmoid(g);
            const float y = g * s * u;
            dot += d * y;
            d *= w;
            store(dgate[i], d * u * (s + g * s * (1.0f - s)));
            store(dup[i], d * g * s);
            store(dy[i], w * y);
        }
        if (dweights) dweights[n] = dot;
    }
}

}  // namespace

void swiglu_forward(Tensor out, const Tensor& gate_up, const Tensor& weights) {
    const int64_t N = out.rows(), F = out.cols();
    check(gate_up.numel() == 2 * out.numel() && gate_up.cols() == 2 * F,
          "swiglu_forward: gate_up is (N, 2F)");
    check(!weights || weights.numel() == N, "swiglu_forward: weights is (N)");
    OpSpan span("swiglu_forward", 5.0 * double(N * F), bytes_of(out, gate_up));
    with_type(out.dtype(), [&]<class T>(T) {
        forward(out.as<T>(), gate_up.as<T>(), weights ? weights.as<float>() : nullptr, N, F);
    });
}

void swiglu_backward(Tensor dgate_up, Tensor dout, const Tensor& gate_up, const Tensor& weights,
                     Tensor dweights, Tensor amax) {
    const int64_t N = dout.rows(), F = dout.cols();
    check(gate_up.numel() == 2 * dout.numel() && gate_up.cols() == 2 * F,
          "swiglu_backward: gate_up is (N, 2F)");
    check(bool(weights) == bool(dweights), "swiglu_backward: weights and dweights go together");
    check(!weights || (weights.numel() == N && dweights.numel() == N),
          "swiglu_backward: weights, dweights are (N)");
    check(dgate_up.numel() == gate_up.numel(), "swiglu_backward: dgate_up is (N, 2F)");
    check(!amax || (amax.numel() == 1 && !weights),
          "swiglu_backward: amax is (1), without weights");
    OpSpan span("swiglu_backward", 13.0 * double(N * F), bytes_of(dgate_up, dout, dout, gate_up));
    with_type(dout.dtype(), [&]<class T>(T) {
        backward(dgate_up.as<T>(), dout.as<T>(), gate_up.as<T>(),
                 weights ? weights.as<float>() : nullptr, weights ? dweights.as<float>() : nullptr,
                 N, F);
    });
    if (amax) raise_amax(amax, widened(dgate_up));
}

}  // namespace ultrascale::ops
