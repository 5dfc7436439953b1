// The end of a sum costs nothing any more; its reads do. Four float4s a thread and turn, into four sums that do not wait for each
// other, keep 64 bytes a thread under way.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

constexpr int threads = 256, warps = threads / 32, unroll = 4;

__device__ float warp_sum(float x) {
    for (int lanes = 16; lanes > 0; lanes /= 2) x += __shfl_down_sync(~0u, x, lanes);
    return x;
}

__global__ void __launch_bounds__(threads) sum(float* total, const float* x, int64_t n) {
    __shared__ float partial[warps];
    const float4* const packs = reinterpret_cast<const float4*>(x);
    const int64_t first = int64_t(blockIdx.x) * threads + threadIdx.x, all = int64_t(gridDim.x) * threads, count = n / 4;
    float sums[unroll] = {};
    int64_t i = first;
    for (; i + (unroll - 1) * all < count; i += unroll * all) {
        float4 v[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) v[u] = packs[i + u * all];
#pragma unroll
        for (int u = 0; u < unroll; ++u) sums[u] += (v[u].x + v[u].y) + (v[u].z + v[u].w);
    }
    for (; i < count; i += all) sums[0] += (packs[i].x + packs[i].y) + (packs[i].z + packs[i].w);
    if (first < n % 4) sums[1] += x[4 * count + first];
    float mine = warp_sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = mine;
    __syncthreads();
    if (threadIdx.x < 32) {
        mine = warp_sum(threadIdx.x < warps ? partial[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) atomicAdd(total, mine);
    }
}

void run(const Arguments& args) {
    const unsigned blocks = unsigned(std::clamp(ceil_div(args.size[0] / 4, threads * unroll), int64_t(1), int64_t(8 * multiprocessors())));
    device_zero(args.out.data(), args.out.bytes());
    LAUNCH(sum, blocks, threads, 0)(args.out.as<float>(), args.in[0].as<float>(), args.size[0]);
}

const Registered here{"sum", "16-byte loads, four under way", run};

}  // namespace
}  // namespace ultrascale::kernels
