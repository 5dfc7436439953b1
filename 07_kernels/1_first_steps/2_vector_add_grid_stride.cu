// A grid-stride loop: there are as many blocks as the GPU can hold at once, and each thread takes
// every (number of threads)-th element.
//
// The same kernel works for any n and any grid, blocks are started once, and values that all
// elements share are computed once per thread. In each iteration the threads of a warp still touch
// neighbouring elements: since the stride is the whole grid, the accesses stay coalesced.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__global__ void vector_add(float* c, const float* a, const float* b, int64_t n) {
    // exercise 07.1 begin: a thread begins at its place in the grid, steps by the number of threads
    const int64_t all = int64_t(gridDim.x) * blockDim.x;
    for (int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += all)
        c[i] = a[i] + b[i];
    // exercise 07.1 end
}

void run(const Arguments& args) {
    const int64_t n = args.size[0], threads = 256,
                  resident = 8 * multiprocessors();  // 2048 threads per SM (A100, Hopper)
    const unsigned blocks = unsigned(std::min(ceil_div(n, threads), resident));
    LAUNCH(vector_add, blocks, unsigned(threads), 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), n);
}

const Registered here{"vector add", "grid-stride loop: a grid as large as the GPU", run};

}  // namespace
}  // namespace ultrascale::kernels
