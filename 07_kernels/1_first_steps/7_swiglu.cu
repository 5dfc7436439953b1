// SwiGLU: y = silu(gate) * up, where a row of the input holds gate and up side by side, (N, 2F) ->
// (N, F), in bf16.
//
// There is one thread per element. A warp's load of 2-byte elements covers two sectors: as many
// requests as for floats move half the bytes.
#include <cuda_bf16.h>

#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__global__ void swiglu(__nv_bfloat16* y, const __nv_bfloat16* x, int64_t n, int64_t F) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int64_t row = i / F, column = i % F;
    const float gate = __bfloat162float(x[row * 2 * F + column]),
                up = __bfloat162float(x[row * 2 * F + F + column]);
    y[i] = __float2bfloat16_rn(gate / (1.0f + __expf(-gate)) * up);
}

void run(const Arguments& args) {
    const int64_t F = args.size[1], n = args.size[0] * F;
    auto* y = static_cast<__nv_bfloat16*>(args.out.data());
    const auto* x = static_cast<const __nv_bfloat16*>(args.in[0].data());
    LAUNCH(swiglu, unsigned(ceil_div(n, 256)), 256, 0)(y, x, n, F);
}

const Registered here{"swiglu", "one thread per element", run};

}  // namespace
}  // namespace ultrascale::kernels
