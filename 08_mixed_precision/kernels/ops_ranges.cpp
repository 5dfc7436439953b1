// Operations that look at how large numbers are, in plain loops.
#include "ops_ranges.h"

#include "cpu/ops_common.h"

namespace ultrascale::ops {

namespace {

// Returns the smallest power of two that is not below x > 0.
float power_of_two_above(float x) {
    int exponent = 0;
    const float fraction = std::frexp(x, &exponent);  // x = fraction 2^exponent, in [0.5, 1)
    return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

}  // namespace

void column_scales(Tensor scales, Tensor inverses, const Tensor& x) {
    const int64_t R = x.rows(), C = x.cols();
    check(scales.numel() == C && inverses.numel() == C,
          "column_scales: scales and inverses (C), x (R, C)");
    const OpSpan span("column_scales", 0, bytes_of(x));
    std::vector<float> largest(size_t(C), 0.0f);
    with_type(x.dtype(), [&]<class T>(T) {
        const T* const values = x.as<T>();
        for (int64_t r = 0; r < R; ++r)
            for (int64_t c = 0; c < C; ++c)
                largest[size_t(c)] =
                    std::max(largest[size_t(c)], std::abs(float(values[r * C + c])));
    });
    for (int64_t c = 0; c < C; ++c) {
        const float scale = largest[size_t(c)] > 0 ? power_of_two_above(largest[size_t(c)]) : 1;
        scales.as<float>()[c] = scale, inverses.as<float>()[c] = 1 / scale;
    }
}

void scale_columns(Tensor y, const Tensor& x, const Tensor& factors, const Tensor& addend) {
    const int64_t R = x.rows(), C = x.cols();
    check(y.numel() == x.numel() && factors.numel() == C &&
              (!addend || (addend.numel() == x.numel() && addend.dtype() == y.dtype())),
          "scale_columns: y, x and addend (R, C), factors (C)");
    const OpSpan span("scale_columns", 0, bytes_of(y, x) + (addend ? bytes_of(addend) : 0));
    with_type(x.dtype(), [&]<class X>(X) {
        with_type(y.dtype(), [&]<class Y>(Y) {
            const X* const from = x.as<X>();
            const Y* const more = addend ? addend.as<Y>() : nullptr;
            Y* const to = y.as<Y>();
            const float* const f = factors.as<float>();
#pragma omp parallel for if (R * C > parallel_threshold)
            for (int64_t r = 0; r < R; ++r)
                for (int64_t c = 0; c < C; ++c) {
                    const int64_t i = r * C + c;
                    store(to[i], float(from[i]) * f[c] + (more ? float(more[i]) : 0.0f));
                }
        });
    });
}

void count_saturated(Tensor count, const Tensor& x) {
    check(dtype_bytes(x.dtype()) == 1, "count_saturated: e4m3 or e5m2");
    const OpSpan span("count_saturated", 0, bytes_of(x));
    const uint8_t largest = x.dtype() == DType::e4m3 ? uint8_t(formats::E4m3::largest_code)
                                                     : uint8_t(formats::E5m2::largest_code);
    const uint8_t* const codes = static_cast<const uint8_t*>(x.data());
    int32_t found = 0;
    const int64_t n = x.numel();
#pragma omp parallel for simd reduction(+ : found) if (n > parallel_threshold)
    for (int64_t i = 0; i < n; ++i) found += (codes[i] & 0x7f) == largest;
    *count.as<int32_t>() += found;
}

void count_binades(Tensor counts, const Tensor& x) {
    check(counts.numel() == binades, "count_binades: counts (binades)");
    const OpSpan span("count_binades", 0, bytes_of(x));
    int32_t* const all = counts.as<int32_t>();
    with_type(x.dtype(), [&]<class T>(T) {
        const T* const values = x.as<T>();
        for (int64_t i = 0; i < x.numel(); ++i) {
            const uint32_t bits = std::bit_cast<uint32_t>(float(values[i])) & 0x7fffffffu;
            ++all[bits == 0 ? 0 : 1 + (bits >> 23)];
        }
    });
}

}  // namespace ultrascale::ops
