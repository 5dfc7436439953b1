// SwiGLU with 8 bf16 (16 bytes) per thread, if rows are multiples of 8, and without the division i
// / F, which takes a GPU about 50 instructions for 64 bits: a block works on one row or a part of
// it, so no thread needs to divide. A block has 512 threads, so it covers a row of 4096, and blocks
// that run at the same time read whole rows side by side. (With 128 threads it covers a quarter of
// its row, blocks of neighbouring rows run together, and their reads lie 16 KiB apart: 96 instead
// of 99 % of a copy's bandwidth on an H200.) The hint to L2 (l2.cuh) gains 0.7 %.
#include <cuda_bf16.h>

#include "../kernel.h"
#include "cuda/l2.cuh"

namespace ultrascale::kernels {
namespace {

constexpr int threads = 512;

struct alignas(16) Pack {
    __nv_bfloat16 x[8];
};

__device__ __nv_bfloat16 swiglu_of(__nv_bfloat16 gate, __nv_bfloat16 up) {
    const float g = __bfloat162float(gate);
    return __float2bfloat16_rn(__fdividef(g, 1.0f + __expf(-g)) * __bfloat162float(up));
}

__global__ void swiglu(__nv_bfloat16* y, const __nv_bfloat16* x, int64_t F) {
    const int64_t row = blockIdx.x, column = 8 * (int64_t(blockIdx.y) * blockDim.x + threadIdx.x);
    const __nv_bfloat16 *gates = x + row * 2 * F + column, *ups = gates + F;
    if (F % 8 == 0 && column < F) {
        const Pack gate = load_evict_last(reinterpret_cast<const Pack*>(gates)),
                   up = load_evict_last(reinterpret_cast<const Pack*>(ups));
        Pack result;
#pragma unroll
        for (int j = 0; j < 8; ++j) result.x[j] = swiglu_of(gate.x[j], up.x[j]);
        *reinterpret_cast<Pack*>(y + row * F + column) = result;
    } else {
        for (int64_t j = 0; j < 8 && column + j < F; ++j)
            y[row * F + column + j] = swiglu_of(gates[j], ups[j]);
    }
}

void run(const Arguments& args) {
    const int64_t N = args.size[0], F = args.size[1];
    auto* y = static_cast<__nv_bfloat16*>(args.out.data());
    const auto* x = static_cast<const __nv_bfloat16*>(args.in[0].data());
    LAUNCH(swiglu, dim3(unsigned(N), unsigned(ceil_div(F, 8 * threads))), threads, 0)(y, x, F);
}

const Registered here{"swiglu", "8 elements per thread, no division", run};

}  // namespace
}  // namespace ultrascale::kernels
