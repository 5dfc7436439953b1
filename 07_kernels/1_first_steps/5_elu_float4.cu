// ELU with what vector_add showed: a grid-stride loop over float4s.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__device__ float elu_of(float x) { return x > 0 ? x : expm1f(x); }

__global__ void elu(float* y, const float* x, int64_t n) {
    const int64_t first = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, all = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = first; i < n / 4; i += all) {
        const float4 v = reinterpret_cast<const float4*>(x)[i];
        reinterpret_cast<float4*>(y)[i] = make_float4(elu_of(v.x), elu_of(v.y), elu_of(v.z), elu_of(v.w));
    }
    if (const int64_t i = n / 4 * 4 + first; i < n) y[i] = elu_of(x[i]);
}

void run(const Arguments& args) {
    const int64_t n = args.size[0];
    const unsigned blocks = unsigned(std::clamp(ceil_div(n / 4, 256), int64_t(1), int64_t(8 * multiprocessors())));
    LAUNCH(elu, blocks, 256, 0)(args.out.as<float>(), args.in[0].as<float>(), n);
}

const Registered here{"elu", "16-byte loads and stores", run};

}  // namespace
}  // namespace ultrascale::kernels
