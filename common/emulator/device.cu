// The functions that kernels need from their device when they run on the CPU; the CPU backend
// provides everything else.
#include <cstring>

#include "core/tensor.h"
#include "cuda/cuda_common.h"

namespace ultrascale {

void cuda_check(cudaError_t, std::source_location) {}
cudaStream_t cuda_stream(const Stream&) { return nullptr; }
int multiprocessors() { return 4; }
bool programmatic_launch() { return false; }
bool hopper() { return false; }
int64_t shared_memory_per_block() { return 99 << 10; }  // as much as the smallest GPUs have
Tensor constant_on_device(const void* data, int64_t bytes) {
    Tensor tensor = Tensor::empty({bytes / 4}, DType::int32, Memory::workspace);
    std::memcpy(tensor.data(), data, size_t(bytes));
    return tensor;
}

}  // namespace ultrascale
