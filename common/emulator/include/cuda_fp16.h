// Stands in for CUDA's header where kernels run on the CPU: IEEE half precision, with tensor.h's
// conversions.
#pragma once

#include "core/tensor.h"
#include "cuda_runtime.h"

using __half = ultrascale::fp16;
inline float __half2float(__half x) { return float(x); }
inline __half __float2half_rn(float x) { return __half(x); }
