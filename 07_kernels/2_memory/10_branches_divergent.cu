// Control divergence: a warp issues one instruction at a time, for those of its threads that have
// reached it. If threads take different branches, the warp executes one branch after the other,
// each without the other's threads.
//
// Here odd and even elements are treated differently (256 multiply-adds; x is added or subtracted),
// so each warp executes 512.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__global__ void branches(float* y, const float* x, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = 0;
    if (i % 2 == 0) {
#pragma unroll 16
        for (int k = 0; k < 256; ++k) value = value * 0.75f + x[i];
        y[i] = value;
    } else {
#pragma unroll 16
        for (int k = 0; k < 256; ++k) value = value * 0.75f - x[i];
        y[i] = value;
    }
}

void run(const Arguments& args) {
    const int64_t n = args.size[0];
    LAUNCH(branches, unsigned(ceil_div(n, 256)), 256, 0)
    (args.out.as<float>(), args.in[0].as<float>(), n);
}

const Registered here{"branches", "neighbouring threads take different branches", run};

}  // namespace
}  // namespace ultrascale::kernels
