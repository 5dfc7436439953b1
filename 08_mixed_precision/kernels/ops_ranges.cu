// How large numbers are. Counts are integers, so atomics give the same result in every run.
#include "cuda/ops_common.cuh"
#include "ops_ranges.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256, columns = 32;  // of a block

__device__ int magnitude_bits(float x) { return __float_as_int(x) & 0x7fffffff; }

// Rounds up to a power of two: any bit of the mantissa carries into the exponent.
__device__ float power_of_two_above(float x) {
    return __int_as_float((magnitude_bits(x) + 0x007fffff) & 0x7f800000);
}

// A block has 32 columns: thread (x, y) takes column x and every 8th row. A NaN does not count.
template <class T>
__global__ void scales_of_columns(float* scales, float* inverses, const T* x, int64_t R,
                                  int64_t C) {
    constexpr int parts = threads / columns;
    __shared__ float part_maxima[parts][columns];
    const int lane = int(threadIdx.x) % columns, part = int(threadIdx.x) / columns;
    const int64_t c = int64_t(blockIdx.x) * columns + lane;
    float most = 0;
    if (c < C)
        for (int64_t r = part; r < R; r += parts) most = fmaxf(most, fabsf(to_float(x[r * C + c])));
    part_maxima[part][lane] = most;
    __syncthreads();
    if (part != 0 || c >= C) return;
    for (int p = 1; p < parts; ++p) most = fmaxf(most, part_maxima[p][lane]);
    const float scale = most > 0 ? power_of_two_above(most) : 1.0f;
    scales[c] = scale, inverses[c] = 1 / scale;
}

template <class Y, class X>
__global__ void times_factors(Y* y, const X* x, const float* factors, const Y* addend, int64_t n,
                              int64_t C) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= n) return;
    y[i] = from_float<Y>(to_float(x[i]) * factors[i % C] + (addend ? to_float(addend[i]) : 0.0f));
}

__global__ void saturated(int* count, const unsigned char* codes, int64_t n, int largest) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i < n && (codes[i] & 0x7f) == largest) atomicAdd(count, 1);
}

template <class T>
__global__ void histogram(int* counts, const T* x, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= n) return;
    const int bits = magnitude_bits(to_float(x[i]));
    atomicAdd(counts + (bits == 0 ? 0 : 1 + (bits >> 23)), 1);
}

unsigned blocks(int64_t n) { return unsigned(ceil_div(n, threads)); }

}  // namespace

void column_scales(Tensor scales, Tensor inverses, const Tensor& x) {
    const int64_t R = x.rows(), C = x.cols();
    check(scales.numel() == C && inverses.numel() == C,
          "column_scales: scales and inverses (C), x (R, C)");
    const OpSpan span("column_scales", 0, bytes_of(x));
    with_type(x.dtype(), [&]<class T>(T) {
        LAUNCH(scales_of_columns<T>, unsigned(ceil_div(C, columns)), threads, 0)
        (data<float>(scales), data<float>(inverses), data<const T>(x), R, C);
    });
}

void scale_columns(Tensor y, const Tensor& x, const Tensor& factors, const Tensor& addend) {
    const int64_t n = x.numel(), C = x.cols();
    check(y.numel() == n && factors.numel() == C &&
              (!addend || (addend.numel() == n && addend.dtype() == y.dtype())),
          "scale_columns: y, x and addend (R, C), factors (C)");
    const OpSpan span("scale_columns", 0, bytes_of(y, x) + (addend ? bytes_of(addend) : 0));
    with_type(x.dtype(), [&]<class X>(X) {
        with_type(y.dtype(), [&]<class Y>(Y) {
            auto* const kernel = times_factors<Y, X>;
            LAUNCH(kernel, blocks(n), threads, 0)
            (data<Y>(y), data<const X>(x), data<const float>(factors),
             addend ? data<const Y>(addend) : nullptr, n, C);
        });
    });
}

void count_saturated(Tensor count, const Tensor& x) {
    check(dtype_bytes(x.dtype()) == 1, "count_saturated: e4m3 or e5m2");
    const OpSpan span("count_saturated", 0, bytes_of(x));
    const int largest =
        int(x.dtype() == DType::e4m3 ? formats::E4m3::largest_code : formats::E5m2::largest_code);
    LAUNCH(saturated, blocks(x.numel()), threads, 0)
    (data<int32_t>(count), static_cast<const unsigned char*>(x.data()), x.numel(), largest);
}

void count_binades(Tensor counts, const Tensor& x) {
    check(counts.numel() == binades, "count_binades: counts (binades)");
    const OpSpan span("count_binades", 0, bytes_of(x));
    with_type(x.dtype(), [&]<class T>(T) {
        LAUNCH(histogram<T>, blocks(x.numel()), threads, 0)
        (data<int32_t>(counts), data<const T>(x), x.numel());
    });
}

}  // namespace ultrascale::ops
