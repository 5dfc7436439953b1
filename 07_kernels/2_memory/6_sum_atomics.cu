// The sum of all elements. Each thread adds up every (number of threads)-th element; then all
// threads add their sums to one number, atomically.
//
// atomicAdd makes read, add and write one step that no other thread can interrupt. Additions to one
// address happen one after another, in L2: here as many as there are threads. Their order differs
// from run to run, and so does the last bit of the result.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__global__ void sum(float* total, const float* x, int64_t n) {
    float mine = 0;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += int64_t(gridDim.x) * blockDim.x)
        mine += x[i];
    atomicAdd(total, mine);
}

void run(const Arguments& args) {
    const unsigned blocks =
        unsigned(std::min(ceil_div(args.size[0], 256), int64_t(8 * multiprocessors())));
    device_zero(args.out.data(), args.out.bytes());
    LAUNCH(sum, blocks, 256, 0)(args.out.as<float>(), args.in[0].as<float>(), args.size[0]);
}

const Registered here{"sum", "one atomic addition per thread", run};

}  // namespace
}  // namespace ultrascale::kernels
