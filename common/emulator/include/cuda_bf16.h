// Stands in for CUDA's header where kernels run on the CPU: bfloat16, with tensor.h's conversions.
#pragma once

#include "core/tensor.h"
#include "cuda_runtime.h"

using __nv_bfloat16 = ultrascale::bf16;
inline float __bfloat162float(__nv_bfloat16 x) { return float(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }

struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) {
    return {__nv_bfloat16(a), __nv_bfloat16(b)};
}
