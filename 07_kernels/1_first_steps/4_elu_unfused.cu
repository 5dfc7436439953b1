// ELU: y = x if x >= 0, else alpha (exp(x) - 1), with one kernel for each operation. That is what
// PyTorch does if it is not told to compile torch.where(x < 0, alpha * (torch.exp(x) - 1), x), with
// which the playbook begins its section on kernels. Each result goes to memory, and the next kernel
// reads it from there.
//
//     negative = x < 0                     read 4       write 1    bytes per element
//     e        = exp(x)                    read 4       write 4
//     shifted  = e - 1                     read 4       write 4
//     scaled   = alpha * shifted           read 4       write 4
//     y        = negative ? scaled : x     read 1+4+4   write 4
//                                          together 42, where 8 are needed: 5.25 times as many
//
// All of them wait for memory. Fusing them, which is what torch.compile does, takes away the bytes
// and four launches.
#include "../kernel.h"

namespace ultrascale::kernels {
namespace {

__device__ int64_t my_element() { return int64_t(blockIdx.x) * blockDim.x + threadIdx.x; }

__global__ void is_negative(bool* y, const float* x, int64_t n) {
    if (const int64_t i = my_element(); i < n) y[i] = x[i] < 0;
}
__global__ void exponential(float* y, const float* x, int64_t n) {
    if (const int64_t i = my_element(); i < n) y[i] = expf(x[i]);
}
__global__ void minus(float* y, const float* x, float number, int64_t n) {
    if (const int64_t i = my_element(); i < n) y[i] = x[i] - number;
}
__global__ void times(float* y, const float* x, float factor, int64_t n) {
    if (const int64_t i = my_element(); i < n) y[i] = factor * x[i];
}
__global__ void choose(float* y, const bool* condition, const float* a, const float* b, int64_t n) {
    if (const int64_t i = my_element(); i < n) {
        const float if_true = a[i], if_false = b[i];  // both are read, whatever the condition
        y[i] = condition[i] ? if_true : if_false;
    }
}

void run(const Arguments& args) {
    const int64_t n = args.size[0];
    const unsigned blocks = unsigned(ceil_div(n, 256));
    const auto* x = args.in[0].as<float>();
    const auto floats = [n] { return Tensor::empty({n}, DType::fp32, Memory::workspace); };
    const Tensor e = floats(), shifted = floats(), scaled = floats(),
                 bytes = Tensor::empty({n}, DType::e4m3, Memory::workspace);  // one per element
    auto* negative = static_cast<bool*>(bytes.data());
    LAUNCH(is_negative, blocks, 256, 0)(negative, x, n);
    LAUNCH(exponential, blocks, 256, 0)(e.as<float>(), x, n);
    LAUNCH(minus, blocks, 256, 0)(shifted.as<float>(), e.as<float>(), 1.0f, n);
    LAUNCH(times, blocks, 256, 0)(scaled.as<float>(), shifted.as<float>(), 1.0f, n);
    LAUNCH(choose, blocks, 256, 0)(args.out.as<float>(), negative, scaled.as<float>(), x, n);
}

const Registered here{"elu", "one kernel per operation: 42 bytes per element", run};

}  // namespace
}  // namespace ultrascale::kernels
