// The way back from the experts: each token gathers its rows and adds them in order.
//
// For each element of y, forward reads k (with a residual k + 1) elements and writes one. Backward
// reads dy once, as neighbouring warps share a token, and with weights the rows, and writes the
// rows' gradients: per token and element 1 + k, or 1 + 2 k.
#include "core/ops_experts_checks.h"
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// Each thread computes one pack of y.
template <int n, class T>
__global__ void __launch_bounds__(threads)
    forward(T* y, const T* rows, const int32_t* place, const float* weights, const T* residual,
            int64_t packs, int row_packs, int k) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= packs) return;
    const int64_t token = i / row_packs, column = i % row_packs * n;
    float sum[n] = {};
    if (residual) {
        const auto pack = load<n>(residual + i * n);
#pragma unroll
        for (int c = 0; c < n; ++c) sum[c] = to_float(pack.x[c]);
    }
    place += token * k;
    if (weights) weights += token * k;
#pragma unroll 4
    for (int j = 0; j < k; ++j) {
        const int64_t row = place[j];
        if (row < 0) continue;
        const float w = weights ? weights[j] : 1.0f;
        const auto pack = load<n>(rows + row * row_packs * n + column);
#pragma unroll
        for (int c = 0; c < n; ++c) sum[c] += w * to_float(pack.x[c]);
    }
    Pack<T, n> out;
#pragma unroll
    for (int c = 0; c < n; ++c) out.x[c] = from_float<T>(sum[c]);
    store(y + i * n, out);
}

// A warp for each choice; neighbouring ones read the same row of dy.
template <int n, bool weighted, class T>
__global__ void __launch_bounds__(threads)
    backward(T* drows, float* dweights, const T* dy, const T* rows, const int32_t* place,
             const float* weights, int64_t choices, int64_t h, int k) {
    const int lane = int(threadIdx.x) % 32;
    const int64_t choice = int64_t(blockIdx.x) * (threads / 32) + int(threadIdx.x) / 32;
    if (choice >= choices) return;
    const int64_t row = place[choice];
    if (row < 0) {
        if (weighted && lane == 0) dweights[choice] = 0;
        return;
    }
    dy += choice / k * h, drows += row * h, rows += row * h;
    const float w = weighted ? weights[choice] : 1.0f;
    float dot = 0;
#pragma unroll 4
    for (int64_t i = lane * n; i < h; i += 32 * n) {
        auto d = load<n>(dy + i);
        Pack<T, n> r;
        if constexpr (weighted) r = load<n>(rows + i);
#pragma unroll
        for (int c = 0; c < n; ++c) {
            const float x = to_float(d.x[c]);
            if constexpr (weighted) dot += x * to_float(r.x[c]), d.x[c] = from_float<T>(w * x);
        }
        store(drows + i, d);
    }
    if constexpr (weighted) {
        dot = warp_sum(dot);
        if (lane == 0) dweights[choice] = dot;
    }
}

}  // namespace

void sum_rows(Tensor y, const Tensor& rows, const Tensor& place, const Tensor& weights,
              const Tensor& residual) {
    const SumSizes s = sum_rows_sizes(y, rows, place, weights);
    check(!residual || (residual.numel() == s.N * s.h && residual.dtype() == y.dtype()),
          "sum_rows: residual is (N, h)");
    OpSpan span("sum_rows", 2.0 * double(s.N * s.k * s.h),
                bytes_of(place) + double(s.k + 1) * bytes_of(y) +
                    (weights ? bytes_of(weights) : 0) + (residual ? bytes_of(residual) : 0));
    with_type(y.dtype(), [&]<class T>(T) {
        constexpr int wide = pack_size<T>;
        const bool fits = packs_fit<T>(s.h, {y.data(), rows.data(), residual.data()});
        const int64_t row_packs = fits ? s.h / wide : s.h, packs = s.N * row_packs;
        LAUNCH((fits ? forward<wide, T> : forward<1, T>), unsigned(ceil_div(packs, threads)),
               threads, 0)
        (data<T>(y), data<T>(rows), place.as<int32_t>(), weights ? weights.as<float>() : nullptr,
         residual ? data<T>(residual) : nullptr, packs, int(row_packs), int(s.k));
    });
}

void sum_rows_backward(Tensor drows, Tensor dweights, const Tensor& dy, const Tensor& rows,
                       const Tensor& place, const Tensor& weights) {
    const SumSizes s = sum_rows_backward_sizes(drows, dweights, dy, rows, place, weights);
    OpSpan span("sum_rows_backward", (weights ? 3.0 : 0.0) * double(s.N * s.k * s.h),
                bytes_of(dy, place) + (weights ? 2.0 : 1.0) * double(s.k) * bytes_of(dy));
    const int64_t choices = s.N * s.k;
    const unsigned blocks = unsigned(ceil_div(choices, threads / 32));
    with_type(dy.dtype(), [&]<class T>(T) {
        constexpr int wide = pack_size<T>;
        const bool fits = packs_fit<T>(s.h, {drows.data(), dy.data(), rows.data()});
        const auto start = [&](auto kernel) {
            LAUNCH(kernel, blocks, threads, 0)
            (data<T>(drows), weights ? dweights.as<float>() : nullptr, data<T>(dy),
             weights ? data<T>(rows) : nullptr, place.as<int32_t>(),
             weights ? weights.as<float>() : nullptr, choices, s.h, int(s.k));
        };
        if (weights)
            start(fits ? backward<wide, true, T> : backward<1, true, T>);
        else
            start(fits ? backward<wide, false, T> : backward<1, false, T>);
    });
}

}  // namespace ultrascale::ops
