// The online softmax (Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867): maximum and sum
// in one pass.
//
// It sums exp(x - max), where max is the largest number so far. When a larger number comes, exp(x -
// larger) = exp(x - max) * exp(max - larger), so one factor corrects the whole sum so far.
//
//     x      3        1                  5                      4
//     max    3        3                  5                      5
//     sum    1        1 + exp(1-3)       sum * exp(3-5) + 1     sum + exp(4-5)
//
// Two such pairs, of two threads or two warps, are combined in the same way. The row is read twice:
// 6 bytes per element. FlashAttention (5_attention/2_flash_attention.cu) uses the same formula.
#include "rows.cuh"

namespace ultrascale::kernels {
namespace {

__global__ void softmax(__nv_bfloat16* y, const __nv_bfloat16* x, int64_t columns) {
    x += blockIdx.x * columns, y += blockIdx.x * columns;
    rows::MaxSum partial;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x) {
        const float number = __bfloat162float(x[i]), larger = fmaxf(partial.max, number);
        partial.sum = partial.sum * __expf(partial.max - larger) + __expf(number - larger);
        partial.max = larger;
    }
    const rows::MaxSum row = rows::block_max_sum(partial);
    const float factor = 1.0f / row.sum;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x)
        y[i] = __float2bfloat16_rn(__expf(__bfloat162float(x[i]) - row.max) * factor);
}

void run(const Arguments& args) {
    LAUNCH(softmax, unsigned(args.size[0]), 256, 0)
    (rows::data(args.out), rows::data(args.in[0]), args.size[1]);
}

const Registered here{"softmax", "online: max and sum in one pass, 6 bytes", run};

}  // namespace
}  // namespace ultrascale::kernels
