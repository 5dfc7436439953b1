// The first kernel: c = a + b, one thread per element.
//
// Host code allocates device memory, copies the inputs there, launches a grid of blocks of threads
// and copies the result back:
//
//     cudaMalloc(&a, 4 * n);                                    // here Tensor does this,
//     cudaMemcpy(a, on_host, 4 * n, cudaMemcpyHostToDevice);    // and this
//     vector_add<<<blocks, threads>>>(c, a, b, n);              // here LAUNCH, see below
//     cudaMemcpy(result, c, 4 * n, cudaMemcpyDeviceToHost);
//     cudaFree(a);
//
// LAUNCH(vector_add, blocks, threads, shared bytes)(c, a, b, n) also checks for errors; without a
// GPU it executes the kernel on the CPU (common/emulator).
//
// Device code describes the work of a single thread. __global__ marks a kernel, which the host
// launches, and __device__ a function that kernels call. A thread computes from its place in the
// grid which element is its own, and does nothing if there is none: the last block may reach past
// the end.
//
//     block 0           block 1           block 2
//     [0 1 2 ... 255]   [0 1 2 ... 255]   [0 1 2 ... ]   threadIdx.x
//      a[0]   a[255]     a[256] a[511]     a[512] ...    i = blockIdx.x * blockDim.x + threadIdx.x
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__global__ void vector_add(float* c, const float* a, const float* b, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}

void run(const Arguments& args) {
    const int64_t n = args.size[0];
    const unsigned threads = 256, blocks = unsigned(ceil_div(n, threads));
    LAUNCH(vector_add, blocks, threads, 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), n);
}

const Registered here{"vector add", "one thread per element", run};

}  // namespace
}  // namespace ultrascale::kernels
