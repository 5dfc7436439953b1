// Softmax of rows: y = exp(x - max) / sum of exp(x - max). If the maximum were not subtracted, exp
// would overflow from x = 89 on.
//
// A literal implementation reads the row three times: for the maximum, for the sum and for the
// result. Each block works on one row; thread i has elements i, i + 256, i + 512, ... so that a
// warp's threads read neighbours.
//
//     x  [ 0 1 2 ... 255 | 256 ... 511 | ... ]   -> max    read 2    bytes per element
//     x  [ 0 1 2 ... 255 | 256 ... 511 | ... ]   -> sum    read 2
//     x  [ 0 1 2 ... 255 | 256 ... 511 | ... ]   -> y      read 2, write 2
//                                                          together 8, where 4 are needed
//
// A GPU's L1 and L2 may still have the row (the microscope, which has no caches, counts all 8). But
// no data is in flight from memory while a block computes or waits for its threads' maximum.
#include "rows.cuh"

namespace ultrascale::kernels {
namespace {

__device__ float block_max(float x) {
    __shared__ float warp_maxima[32];
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) warp_maxima[threadIdx.x / 32] = x;
    __syncthreads();
    for (unsigned w = 0; w < blockDim.x / 32; ++w) x = fmaxf(x, warp_maxima[w]);
    return x;
}

__global__ void softmax(__nv_bfloat16* y, const __nv_bfloat16* x, int64_t columns) {
    x += blockIdx.x * columns, y += blockIdx.x * columns;
    float largest = -INFINITY;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x)
        largest = fmaxf(largest, __bfloat162float(x[i]));
    largest = block_max(largest);
    float sum = 0;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x)
        sum += __expf(__bfloat162float(x[i]) - largest);
    const float factor = 1.0f / rows::block_sum(sum);
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x)
        y[i] = __float2bfloat16_rn(__expf(__bfloat162float(x[i]) - largest) * factor);
}

void run(const Arguments& args) {
    LAUNCH(softmax, unsigned(args.size[0]), 256, 0)
    (rows::data(args.out), rows::data(args.in[0]), args.size[1]);
}

const Registered here{"softmax", "max, sum, result: 8 bytes per element", run};

}  // namespace
}  // namespace ultrascale::kernels
