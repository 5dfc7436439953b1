// Quantisation to 8 bits and back: plain loops over runs of up to 128 elements of a row. A run
// shares a scale, whatever the groups are.
#include "ops_fp8.h"

namespace ultrascale::ops {

namespace {

// Calls f(row, j, begin, end) for all runs, with elements begin .. end - 1; rows run in parallel.
template <class F>
void for_each_run(int64_t R, int64_t C, const F& f) {
#pragma omp parallel for if (R * C > parallel_threshold)
    for (int64_t r = 0; r < R; ++r)
        for (int64_t j = 0; j < blocks_of(C); ++j)
            f(r, j, r * C + j * scale_block, r * C + std::min(C, (j + 1) * scale_block));
}

// The runs' largest magnitudes (R, C / 128). A NaN does not count, since it stays NaN by itself.
Tensor amax_of_runs(const Tensor& x, int64_t R, int64_t C) {
    Tensor all = Tensor::empty({R, blocks_of(C)}, DType::fp32, Memory::workspace);
    float* amax = all.as<float>();
    const float* values = x.as<float>();
    for_each_run(R, C, [&](int64_t r, int64_t j, int64_t begin, int64_t end) {
        float largest = 0;
#pragma omp simd reduction(max : largest)
        for (int64_t i = begin; i < end; ++i)
            largest = std::abs(values[i]) > largest ? std::abs(values[i]) : largest;
        amax[r * blocks_of(C) + j] = largest;
    });
    return all;
}

// The groups' scales, from the runs' magnitudes.
void set_scales(const Quantised& y, const float* amax, int64_t R, int64_t C, const Scaling& s) {
    const float largest = largest_of(y.values.dtype());
    float* scales = y.scales.as<float>();
    // exercise 08.3 begin: a group's scale comes from its runs' largest magnitude
    std::fill_n(scales, y.scales.numel(), 0.0f);
    for (int64_t r = 0; r < R; ++r)
        for (int64_t j = 0; j < blocks_of(C); ++j) {
            float& group = scales[scale_index(s.group, r, j, R, C)];
            group = std::max(group, amax[r * blocks_of(C) + j]);
        }
    for (int64_t i = 0; i < y.scales.numel(); ++i)
        scales[i] = scale_for(scales[i], largest, s.powers_of_two);
    // exercise 08.3 end
}

template <class T>
void round_runs(T* y, const float* scales, const float* x, int64_t R, int64_t C, ScaleGroup group) {
    for_each_run(R, C, [&](int64_t r, int64_t j, int64_t begin, int64_t end) {
        const float factor = 1.0f / scales[scale_index(group, r, j, R, C)];
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) store(y[i], x[i] * factor);
    });
}

template <class X, class T>
void widen_runs(X* x, const T* y, const float* scales, int64_t R, int64_t C, ScaleGroup group) {
    for_each_run(R, C, [&](int64_t r, int64_t j, int64_t begin, int64_t end) {
        const float scale = scales[scale_index(group, r, j, R, C)];
#pragma omp simd
        for (int64_t i = begin; i < end; ++i) store(x[i], float(y[i]) * scale);
    });
}

// Calls raise_amax() with the magnitudes of the runs.
void raise_by_runs(const Tensor& amax, const Tensor& runs) {
    const float* values = runs.as<float>();
    float& largest = *amax.as<float>();
    largest = std::accumulate(values, values + runs.numel(), largest, larger);
}

void quantise_one(const Quantised& y, const Tensor& x, int64_t R, int64_t C, const Scaling& s,
                  const Tensor& amax) {
    if (!s.given || amax) {
        const Tensor all = amax_of_runs(x, R, C);
        if (amax) raise_by_runs(amax, all);
        if (!s.given) set_scales(y, all.as<float>(), R, C, s);
    }
    with_fp8(y.values.dtype(), [&]<class T>(T) {
        round_runs(y.values.as<T>(), y.scales.as<float>(), x.as<float>(), R, C, s.group);
    });
}

}  // namespace

void quantise_floats(const Quantised& y, const Quantised& transposed, const Tensor& x,
                     const Scaling& scaling, const Tensor& amax) {
    const int64_t R = x.rows(), C = x.cols();
    if (y) quantise_one(y, x, R, C, scaling, amax);
    if (!transposed) return;
    const Tensor turned = Tensor::empty({C, R}, DType::fp32, Memory::workspace);
    transpose(turned.as<float>(), x.as<float>(), R, C);
    quantise_one(transposed, turned, C, R, scaling, y ? Tensor() : amax);
}

void raise_amax(const Tensor& amax, const Tensor& x) {
    raise_by_runs(amax, amax_of_runs(x, x.rows(), x.cols()));
}

void dequantise_floats(const Tensor& x, const Quantised& y, ScaleGroup group) {
    const int64_t R = y.values.rows(), C = y.values.cols();
    with_type(x.dtype(), [&]<class X>(X) {
        with_fp8(y.values.dtype(), [&]<class T>(T) {
            widen_runs(x.as<X>(), y.values.as<T>(), y.scales.as<float>(), R, C, group);
        });
    });
}

void quantise(const Quantised& y, const Quantised& transposed, const Tensor& x,
              const Scaling& scaling, Tensor amax) {
    check_quantise(y, transposed, x.rows(), x.cols(), scaling, amax);
    OpSpan span("quantise", 2.0 * double(x.numel()),
                bytes_of(x) + bytes_in(y) + bytes_in(transposed));
    quantise_floats(y, transposed, widened(x), scaling, amax);
}

void dequantise(Tensor x, const Quantised& y, ScaleGroup group) {
    check_quantised(y, x.rows(), x.cols(), group, "dequantise: y (R, C) e4m3 or e5m2, its scales");
    OpSpan span("dequantise", double(x.numel()), bytes_of(x) + bytes_in(y));
    dequantise_floats(x, y, group);
}

}  // namespace ultrascale::ops
