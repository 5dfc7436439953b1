// A kernel for other languages: a shared library with a C function, which elu.py calls. `make
// python` builds it, with nothing of PyTorch or Python. (The playbook's appendix A1 does the same
// with PyTorch's cpp_extension.)
#include "../1_first_steps/elu.cuh"

// Without a GPU there is no need for the emulator: ELU has no barriers, so its threads can run one
// after the other.
#ifdef ULTRASCALE_SIMT
constexpr int on_gpu = 0;
thread_local constinit uint3 threadIdx{}, blockIdx{};
thread_local constinit dim3 blockDim, gridDim;
void simt::launch(const Call& call, dim3 grid, dim3 block, size_t) {
    gridDim = grid, blockDim = block;
    for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < block.x; ++threadIdx.x) call.run(call.arguments);
}
#else
constexpr int on_gpu = 1;
#endif

extern "C" int ultrascale_on_gpu() { return on_gpu; }  // whose addresses the library takes

// y[i] = ELU(x[i]) for n numbers in fp32, which may be in place. In a library for GPUs both are
// addresses of the device that is selected, and the kernel is queued on `stream`, a cudaStream_t
// (null: the default stream). Returns 0, or CUDA's error.
extern "C" int ultrascale_elu(float* y, const float* x, int64_t n, void* stream) {
    if (n <= 0) return 0;
    const cudaLaunchConfig_t config = {unsigned((n + 255) / 256),         256,     0,
                                       static_cast<cudaStream_t>(stream), nullptr, 0};
    return int(cudaLaunchKernelEx(&config, ultrascale::kernels::elu, y, x, n));
}
