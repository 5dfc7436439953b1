// Shared by the CPU's operations in 8 bits. Private to common/cpu.
#pragma once

#include <numeric>

#include "core/ops_fp8.h"
#include "core/ops_fp8_checks.h"
#include "ops_common.h"

namespace ultrascale::ops {

// Calls f(e4m3{}) or f(e5m2{}).
template <class F>
void with_fp8(DType dtype, F&& f) {
    with_format<e4m3, e5m2>(dtype, f);
}
inline float larger(float a, float b) { return a > b ? a : b; }

// to (C, R) = the transpose of from (R, C).
template <class T>
void transpose(T* to, const T* from, int64_t R, int64_t C) {
    constexpr int64_t square = 32;  // the rows of a square, of both matrices, stay in the L1 cache
#pragma omp parallel for if (R * C > parallel_threshold)
    for (int64_t c0 = 0; c0 < C; c0 += square)
        for (int64_t r0 = 0; r0 < R; r0 += square)
            for (int64_t c = c0; c < std::min(C, c0 + square); ++c)
                for (int64_t r = r0; r < std::min(R, r0 + square); ++r)
                    to[c * R + r] = from[r * C + c];
}

// quantise and dequantise without a span of their own, for use in other operations; x is fp32.
void quantise_floats(const Quantised& y, const Quantised& transposed, const Tensor& x,
                     const Scaling& scaling, const Tensor& amax);
// Sets *amax to the largest magnitude of x (fp32) if that is larger.
void raise_amax(const Tensor& amax, const Tensor& x);
void dequantise_floats(const Tensor& x, const Quantised& y, ScaleGroup group);

}  // namespace ultrascale::ops
