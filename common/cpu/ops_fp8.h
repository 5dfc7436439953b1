// What the CPU's operations in 8 bits share. Private to common/cpu.
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

// quantise and dequantise without a span of their own, for use in other operations; x is fp32.
void quantise_floats(const Quantised& y, const Quantised& transposed, const Tensor& x,
                     const Scaling& scaling, const Tensor& amax);
// *amax becomes the largest magnitude of x (fp32), or stays if it is larger.
void raise_amax(const Tensor& amax, const Tensor& x);
void dequantise_floats(const Tensor& x, const Quantised& y, ScaleGroup group);

}  // namespace ultrascale::ops
