// Stands in for CUDA's header where kernels run on the CPU: fp8, with tensor.h's conversions.
#pragma once

#include "core/tensor.h"
#include "cuda_runtime.h"

using __nv_fp8_e4m3 = ultrascale::e4m3;
using __nv_fp8_e5m2 = ultrascale::e5m2;
