// A block adds up its threads' sums in shared memory, as a tree, and only one of its threads adds
// to the total atomically.
//
//     thread   0   1   2   3   4   5   6   7
//              a   b   c   d   e   f   g   h
//     step 4   a+e b+f c+g d+h                half of the threads, then a quarter, ...:
//     step 2   ae+cg bf+dh                    neighbours stay at work, so that whole warps go idle
//     step 1   all                            together, and they read neighbouring banks
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

constexpr int threads = 256;

__global__ void sum(float* total, const float* x, int64_t n) {
    __shared__ float partial[threads];
    float mine = 0;
    for (int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x; i < n;
         i += int64_t(gridDim.x) * threads)
        mine += x[i];
    partial[threadIdx.x] = mine;
    __syncthreads();
    // exercise 07.3 begin: a tree: half of the threads add the other half, then a quarter, ...
    for (int step = threads / 2; step > 0; step /= 2) {
        if (threadIdx.x < unsigned(step)) partial[threadIdx.x] += partial[threadIdx.x + step];
        __syncthreads();
    }
    if (threadIdx.x == 0) atomicAdd(total, partial[0]);
    // exercise 07.3 end
}

void run(const Arguments& args) {
    const unsigned blocks =
        unsigned(std::min(ceil_div(args.size[0], threads), int64_t(8 * multiprocessors())));
    device_zero(args.out.data(), args.out.bytes());
    LAUNCH(sum, blocks, threads, 0)(args.out.as<float>(), args.in[0].as<float>(), args.size[0]);
}

const Registered here{"sum", "a tree in shared memory, one atomic add per block", run};

}  // namespace
}  // namespace ultrascale::kernels
