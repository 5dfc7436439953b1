// SwiGLU: out = silu(gate) * up, silu(x) = x * sigmoid(x).
//
// Forward reads gate and up and writes out: 6 bytes per element of out in bf16. Backward reads
// gate, up and dout, writes the gradients of gate and up, and overwrites dout with the output: 12
// bytes. A block has neighbouring packs, of one row or several.
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// The division is not rounded exactly (its error is up to 2 units in the last place): an exact
// division would take as long as the memory accesses.
__device__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }

// Each thread has a pack of out, of which there are `count`, `in_row` in a row.
template <int n, class T>
__global__ void __launch_bounds__(threads)
    forward_kernel(T* out, const T* gate_up, const float* weights, uint32_t in_row,
                   uint32_t count) {
    const uint32_t i = blockIdx.x * threads + threadIdx.x;
    if (i >= count) return;
    const uint32_t row = i / in_row, pack = i % in_row;
    const int64_t F = int64_t(in_row) * n;
    const T* const gate = gate_up + row * 2 * F + pack * n;
    const auto gates = load<n>(gate), ups = load<n>(gate + F);
    const float row_weight = weights ? weights[row] : 1.0f;
    float g[n], u[n];
    to_floats(g, gates), to_floats(u, ups);
#pragma unroll
    for (int j = 0; j < n; ++j) u[j] = row_weight * (g[j] * sigmoid(g[j]) * u[j]);
    store(out + int64_t(i) * n, from_floats<T>(u));
}

// Replaces g, u and the output's gradient d by the gradients of g and u, and the output. With s =
// sigmoid(g), d silu(g) / dg = s + g s (1 - s).
__device__ void swiglu_gradients(float& g, float& u, float& d) {
    const float s = sigmoid(g), y = g * s;
    const float dg = d * u * (s + y * (1.0f - s)), du = d * y;
    d = y * u, g = dg, u = du;
}

// Each thread has a pack, as in forward. If `measures`, *amax becomes the largest magnitude of the
// gradients; most warps see that another one has already found a larger one.
template <int n, bool measures, class T>
__global__ void __launch_bounds__(threads)
    backward_kernel(T* dgate_up, T* dout, const T* gate_up, uint32_t in_row, uint32_t count,
                    float* amax) {
    const uint32_t i = blockIdx.x * threads + threadIdx.x, row = i / in_row, pack = i % in_row;
    float largest = 0;
    if (i < count) {
        const int64_t F = int64_t(in_row) * n, at = row * 2 * F + pack * n;
        float g[n], u[n], d[n];
        to_floats(g, load<n>(gate_up + at)), to_floats(u, load<n>(gate_up + at + F));
        to_floats(d, load<n>(dout + int64_t(i) * n));
#pragma unroll
        for (int j = 0; j < n; ++j) swiglu_gradients(g[j], u[j], d[j]);
        const auto dgate = from_floats<T>(g), dup = from_floats<T>(u);
        store(dgate_up + at, dgate), store(dgate_up + at + F, dup);
        store(dout + int64_t(i) * n, from_floats<T>(d));
        if constexpr (measures) {
            to_floats(g, dgate), to_floats(u, dup);
#pragma unroll
            for (int j = 0; j < n; ++j)  // if one is NaN, fmaxf takes the other
                largest = fmaxf(largest, fmaxf(fabsf(g[j]), fabsf(u[j])));
        }
    }
    if constexpr (measures) {
        largest = warp_max(largest);
        if (threadIdx.x % 32 == 0 && largest > *amax)  // magnitudes have the order of their bits
            atomicMax(reinterpret_cast<unsigned*>(amax), __float_as_uint(largest));
    }
}

// For row weights: row n is multiplied by weights[n]. A warp handles each row; its sum of dout *
// out is the weight's gradient.
template <int n, class T>
__global__ void __launch_bounds__(threads)
    weighted_backward(T* dgate_up, T* dout, const T* gate_up, const float* weights, float* dweights,
                      int64_t N, int64_t F) {
    const int lane = int(threadIdx.x) % 32;
    const int64_t row = int64_t(blockIdx.x) * (threads / 32) + int(threadIdx.x) / 32;
    if (row >= N) return;
    const T *gate = gate_up + row * 2 * F, *up = gate + F;
    T *dgate = dgate_up + row * 2 * F, *dup = dgate + F;
    dout += row * F;
    const float w = weights[row];
    float dot = 0;
#pragma unroll 2
    for (int64_t i = lane * n; i < F; i += 32 * n) {
        const auto gates = load<n>(gate + i), ups = load<n>(up + i), douts = load<n>(dout + i);
        float g[n], u[n], d[n];
        to_floats(g, gates), to_floats(u, ups), to_floats(d, douts);
#pragma unroll
        for (int j = 0; j < n; ++j) {
            const float out_gradient = d[j];
            d[j] *= w;
            swiglu_gradients(g[j], u[j], d[j]);
            dot += out_gradient * d[j], d[j] *= w;
        }
        store(dgate + i, from_floats<T>(g)), store(dup + i, from_floats<T>(u));
        store(dout + i, from_floats<T>(d));
    }
    dot = warp_sum(dot);
    if (lane == 0) dweights[row] = dot;
}

// The packs of out (N, F): per row, and in all. `fits`: n elements each, else one.
struct Packs {
    uint32_t in_row, count;
};
template <int n>
Packs packs_of(int64_t N, int64_t F, bool fits) {
    const int64_t in_row = fits ? F / n : F, count = N * in_row;
    check(count + threads < int64_t(1) << 32, "swiglu: the kernels divide 32-bit numbers");
    return {uint32_t(in_row), uint32_t(count)};
}

}  // namespace

void swiglu_forward(Tensor out, const Tensor& gate_up, const Tensor& weights) {
    const int64_t N = out.rows(), F = out.cols();
    check(gate_up.numel() == 2 * out.numel() && gate_up.cols() == 2 * F,
          "swiglu_forward: gate_up is (N, 2F)");
    check(!weights || weights.numel() == N, "swiglu_forward: weights is (N)");
    const float* w = weights ? weights.as<float>() : nullptr;
    OpSpan span("swiglu_forward", 5.0 * double(N * F), bytes_of(out, gate_up));
    with_type(out.dtype(), [&]<class T>(T) {
        constexpr int n = pack_size<T>;
        const bool fits = packs_fit<T>(F, {out.data(), gate_up.data()});
        const Packs packs = packs_of<n>(N, F, fits);
        LAUNCH((fits ? forward_kernel<n, T> : forward_kernel<1, T>),
               unsigned(ceil_div(packs.count, threads)), threads, 0)
        (data<T>(out), data<T>(gate_up), w, packs.in_row, packs.count);
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
        constexpr int n = pack_size<T>;
        const bool fits = packs_fit<T>(F, {dgate_up.data(), dout.data(), gate_up.data()});
        if (weights)
            LAUNCH((fits ? weighted_backward<n, T> : weighted_backward<1, T>),
                   unsigned(ceil_div(N, threads / 32)), threads, 0)
        (data<T>(dgate_up), data<T>(dout), data<T>(gate_up), weights.as<float>(),
         dweights.as<float>(), N, F);
        else {
            const Packs packs = packs_of<n>(N, F, fits);
            const auto start = [&](auto kernel) {
                LAUNCH(kernel, unsigned(ceil_div(packs.count, threads)), threads, 0)
                (data<T>(dgate_up), data<T>(dout), data<T>(gate_up), packs.in_row, packs.count,
                 amax ? amax.as<float>() : nullptr);
            };
            if (fits)
                start(amax ? backward_kernel<n, true, T> : backward_kernel<n, false, T>);
            else
                start(amax ? backward_kernel<1, true, T> : backward_kernel<1, false, T>);
        }
    });
}

}  // namespace ultrascale::ops
