// Shared by the kernels that produce 8-bit numbers. Private to common/cuda.
#pragma once

#include "core/ops_fp8_checks.h"
#include "ops_common.cuh"

namespace ultrascale::ops {

// Calls f(__nv_fp8_e4m3{}) or f(__nv_fp8_e5m2{}).
template <class F>
void with_fp8(DType dtype, F&& f) {
    with_format<__nv_fp8_e4m3, __nv_fp8_e5m2>(dtype, f);
}

// How a kernel finds the scales of its groups. The scales of a tensor and of rows are inputs; those
// of tiles and blocks it computes itself, since each group lies within a thread block.
struct ScalesOf {
    float* scales;  // as in ops_fp8.h; null: there is no output in this orientation
    ScaleGroup group;
    float largest;  // the format's
    bool powers_of_two;
};

// The 8-bit numbers of two or more floats, the first in the lowest bits; saturated.
template <class F>
__device__ uint32_t codes_of_two(float a, float b) {
    return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE,
                                    std::is_same_v<F, __nv_fp8_e4m3> ? __NV_E4M3 : __NV_E5M2);
}
template <class F>
__device__ uint32_t codes_of_four(float a, float b, float c, float d) {
    return codes_of_two<F>(a, b) | codes_of_two<F>(c, d) << 16;
}
using EightCodes = Pack<uint32_t, 2>;
template <class F>
__device__ EightCodes codes_of_eight(const float (&x)[8], float factor) {
    return {{codes_of_four<F>(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor),
             codes_of_four<F>(x[4] * factor, x[5] * factor, x[6] * factor, x[7] * factor)}};
}
// n codes at an address that is a multiple of n.
template <int n, class F>
__device__ void store_codes(F* to, const float (&x)[n], float factor) {
    if constexpr (n == 8)
        store(reinterpret_cast<uint32_t*>(to), codes_of_eight<F>(x, factor));
    else
        *reinterpret_cast<uint32_t*>(to) =
            codes_of_four<F>(x[0] * factor, x[1] * factor, x[2] * factor, x[3] * factor);
}

// The largest of `lanes` neighbouring lanes.
template <int lanes>
__device__ float max_of_lanes(float x) {
#pragma unroll
    for (int offset = lanes / 2; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
template <int n>
__device__ float max_magnitude(const float (&x)[n]) {
    float largest = 0;  // if one is NaN, fmaxf takes the other number
#pragma unroll
    for (int j = 0; j < n; ++j) largest = fmaxf(largest, fabsf(x[j]));
    return largest;
}

// The largest magnitude of each column of partial (parts, n), as amax and as a scale; either may be
// null.
void reduce_amax(float* scales, float* amax, const Tensor& partial, int64_t n, DType dtype,
                 bool powers_of_two);

// transpose_quantised for rows and tiles, whose numbers get new scales.
void quantise_again(const Quantised& to, const Quantised& from, const Scaling& scaling);

}  // namespace ultrascale::ops
