// Stands in for CUDA's header where kernels run on the CPU: bfloat16, with tensor.h's conversions.
#pragma once

#include "core/tensor.h"
#include "cuda_runtime.h"

using __nv_bfloat16 = ultrascale::bf16;
inline float __bfloat162float(__nv_bfloat16 x) { return float(x); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return __nv_bfloat16(x); }
