// RMS norm (Zhang & Sennrich 2019), y = x * rsqrt(mean(x²) + 1e-5) * weight, with one kernel per
// operation, like a framework that looks at one operation at a time. Each result goes to memory,
// and the next kernel reads it from there.
//
//     squares = x * x                  read 2        write 4    bytes per element; squares, means
//                                                               are fp32, as a sum needs it
//     mean    = mean of squares        read 4
//     inverse = rsqrt(mean + 1e-5)                              one number per row
//     scaled  = x * inverse            read 2 + 1    write 2    the row's number: a warp reads 32
//                                                               bytes for its 32 elements
//     y       = scaled * weight        read 2 + 2    write 2
//                                      together 21, where 4 are needed; 2 of them the weight, which
//                                      the caches have
//
// All five are memory-bound, so only moving fewer bytes helps.
#include "rows.cuh"

namespace ultrascale::kernels {
namespace {

// One thread per element: blockIdx is (row, part of the row).
__device__ int64_t my_column() { return int64_t(blockIdx.y) * blockDim.x + threadIdx.x; }

__global__ void square(float* squares, const __nv_bfloat16* x, int64_t columns) {
    if (my_column() >= columns) return;
    const int64_t i = blockIdx.x * columns + my_column();
    const float number = __bfloat162float(x[i]);
    squares[i] = number * number;
}

// One block per row.
__global__ void row_mean(float* mean, const float* squares, int64_t columns) {
    float sum = 0;
    for (int64_t i = threadIdx.x; i < columns; i += blockDim.x)
        sum += squares[blockIdx.x * columns + i];
    sum = rows::block_sum(sum);
    if (threadIdx.x == 0) mean[blockIdx.x] = sum / float(columns);
}

// One thread per row.
__global__ void inverse_root(float* inverse, const float* mean, int64_t row_count) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < row_count) inverse[i] = rsqrtf(mean[i] + rms_norm_epsilon);
}

__global__ void times_row_number(__nv_bfloat16* y, const __nv_bfloat16* x, const float* inverse,
                                 int64_t columns) {
    if (my_column() >= columns) return;
    const int64_t i = blockIdx.x * columns + my_column();
    y[i] = __float2bfloat16_rn(__bfloat162float(x[i]) * inverse[blockIdx.x]);
}

__global__ void times_weight(__nv_bfloat16* y, const __nv_bfloat16* x, const __nv_bfloat16* weight,
                             int64_t columns) {
    if (my_column() >= columns) return;
    const int64_t i = blockIdx.x * columns + my_column();
    y[i] = __float2bfloat16_rn(__bfloat162float(x[i]) * __bfloat162float(weight[my_column()]));
}

void run(const Arguments& args) {
    const int64_t row_count = args.size[0], columns = args.size[1];
    const dim3 elements(unsigned(row_count), unsigned(ceil_div(columns, 256)));
    const Tensor squares = Tensor::empty({row_count, columns}, DType::fp32, Memory::workspace);
    const Tensor scaled = Tensor::empty({row_count, columns}, DType::bf16, Memory::workspace);
    const Tensor mean = Tensor::empty({row_count}, DType::fp32, Memory::workspace);
    const Tensor inverse = Tensor::empty({row_count}, DType::fp32, Memory::workspace);
    const __nv_bfloat16 *x = rows::data(args.in[0]), *weight = rows::data(args.in[1]);
    LAUNCH(square, elements, 256, 0)(squares.as<float>(), x, columns);
    LAUNCH(row_mean, unsigned(row_count), 256, 0)(mean.as<float>(), squares.as<float>(), columns);
    LAUNCH(inverse_root, unsigned(ceil_div(row_count, 256)), 256, 0)
    (inverse.as<float>(), mean.as<float>(), row_count);
    LAUNCH(times_row_number, elements, 256, 0)(rows::data(scaled), x, inverse.as<float>(), columns);
    LAUNCH(times_weight, elements, 256, 0)
    (rows::data(args.out), rows::data(scaled), weight, columns);
}

const Registered here{"rms norm", "one kernel per operation: 21 bytes per element", run};

}  // namespace
}  // namespace ultrascale::kernels
