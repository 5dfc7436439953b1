// The decision moves into the data: each thread selects the number that it adds. Then all threads
// of the warp take the same path, and a warp executes 256 multiply-adds instead of 512.
//
// If two branches have nothing in common, sort the elements so that whole warps take one branch: i
// / 32 % 2 instead of i % 2.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__global__ void branches(float* y, const float* x, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float own = x[i], summand = i % 2 == 0 ? own : -own;
    float value = 0;
#pragma unroll 16
    for (int k = 0; k < 256; ++k) value = value * 0.75f + summand;
    y[i] = value;
}

void run(const Arguments& args) {
    const int64_t n = args.size[0];
    LAUNCH(branches, unsigned(ceil_div(n, 256)), 256, 0)
    (args.out.as<float>(), args.in[0].as<float>(), n);
}

const Registered here{"branches", "the choice is data: all threads take one path", run};

}  // namespace
}  // namespace ultrascale::kernels
