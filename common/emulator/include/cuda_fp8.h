// Stands in for CUDA's header where kernels run on the CPU: fp8, with tensor.h's conversions.
#pragma once

#include "core/tensor.h"
#include "cuda_runtime.h"

using __nv_fp8_e4m3 = ultrascale::e4m3;
using __nv_fp8_e5m2 = ultrascale::e5m2;

enum __nv_saturation_t { __NV_SATFINITE };
enum __nv_fp8_interpretation_t { __NV_E4M3, __NV_E5M2 };
inline uint16_t __nv_cvt_float2_to_fp8x2(float2 x, __nv_saturation_t,
                                         __nv_fp8_interpretation_t format) {
    return format == __NV_E4M3
               ? uint16_t(ultrascale::e4m3(x.x).bits | ultrascale::e4m3(x.y).bits << 8)
               : uint16_t(ultrascale::e5m2(x.x).bits | ultrascale::e5m2(x.y).bits << 8);
}
