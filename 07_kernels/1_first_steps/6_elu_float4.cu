// ELU with the steps of vector_add: float4s, and blocks that go to whichever SM is free. Each
// thread loads two float4s before it looks at the first; otherwise too few bytes would be in flight
// while it computes the exponentials.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

constexpr int threads = 256, per_thread = 2;

__device__ float elu_of(float x) { return x > 0 ? x : expm1f(x); }

__global__ void elu(float* y, const float* x, int64_t n) {
    const int64_t first = int64_t(blockIdx.x) * per_thread * threads + threadIdx.x;
    float4 v[per_thread];
#pragma unroll
    for (int k = 0; k < per_thread; ++k)
        if (const int64_t i = first + k * threads; i < n / 4)
            v[k] = reinterpret_cast<const float4*>(x)[i];
#pragma unroll
    for (int k = 0; k < per_thread; ++k)
        if (const int64_t i = first + k * threads; i < n / 4)
            reinterpret_cast<float4*>(y)[i] =
                make_float4(elu_of(v[k].x), elu_of(v[k].y), elu_of(v[k].z), elu_of(v[k].w));
    if (const int64_t left = n / 4 * 4 + first; left < n) y[left] = elu_of(x[left]);
}

void run(const Arguments& args) {
    const int64_t n = args.size[0];
    LAUNCH(elu, unsigned(std::max(ceil_div(n / 4, per_thread * threads), int64_t(1))), threads, 0)
    (args.out.as<float>(), args.in[0].as<float>(), n);
}

const Registered here{"elu", "two 16-byte loads per thread at once", run};

}  // namespace
}  // namespace ultrascale::kernels
