// The gradient of the cross-entropy, (softmax(logits) - onehot(target)) / rows, in three kernels.
// With V = 49152 words the logits are the largest tensor of a training step, and the temporary
// between the kernels is twice as large. It must be fp32: if a probability near 1 is rounded to
// bf16, hardly any digit is left after 1 is subtracted.
//
//     p = softmax(logits)       read 2 + 2    write 4      bytes per element
//                                                          (online: 2_softmax_two_passes.cu)
//     p[target] -= 1                                       one element per row
//     gradient = p / rows       read 4        write 2      together 14, where 4 are needed
#include "rows.cuh"

namespace ultrascale::kernels {
namespace {

__global__ void softmax(float* p, const __nv_bfloat16* logits, int64_t columns) {
    p += blockIdx.x * columns, logits += blockIdx.x * columns;
    rows::MaxSum partial;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x)
        partial.add(rows::Pack<1>{logits[i]});
    const rows::MaxSum row = rows::block_max_sum(partial);
    const float factor = 1.0f / row.sum;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x)
        p[i] = __expf(__bfloat162float(logits[i]) - row.max) * factor;
}

// One thread per row.
__global__ void subtract_one_hot(float* p, const int32_t* targets, int64_t row_count,
                                 int64_t columns) {
    const int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (row < row_count) p[row * columns + targets[row]] -= 1.0f;
}

// One thread per element.
__global__ void scale(__nv_bfloat16* gradient, const float* p, float factor, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) gradient[i] = __float2bfloat16_rn(p[i] * factor);
}

void run(const Arguments& args) {
    const int64_t row_count = args.size[0], columns = args.size[1], n = row_count * columns;
    const Tensor p = Tensor::empty({row_count, columns}, DType::fp32, Memory::workspace);
    const int32_t* targets = args.in[1].as<int32_t>();
    LAUNCH(softmax, unsigned(row_count), 512, 0)(p.as<float>(), rows::data(args.in[0]), columns);
    LAUNCH(subtract_one_hot, unsigned(ceil_div(row_count, 256)), 256, 0)
    (p.as<float>(), targets, row_count, columns);
    LAUNCH(scale, unsigned(ceil_div(n, 256)), 256, 0)
    (rows::data(args.out), p.as<float>(), 1.0f / float(row_count), n);
}

const Registered here{"cross-entropy", "softmax, - one-hot, scale: 14 bytes per element", run};

}  // namespace
}  // namespace ultrascale::kernels
