// What the CUDA operations need of their device, where their kernels run on the CPU: everything else is the CPU backend's.
#include "../cuda/attention.cuh"
#include "../cuda/cuda_common.h"

namespace ultrascale {

void cuda_check(cudaError_t, std::source_location) {}
cudaStream_t cuda_stream(const Stream&) { return nullptr; }
int multiprocessors() { return 4; }
bool programmatic_launch() { return false; }
int64_t shared_memory_per_block() { return 99 << 10; }  // as much as the smallest GPUs have

namespace ops {

void convert(Tensor to, const Tensor& from) { copy(to, from); }  // of cpu/ops_common.h: the products are OpenBLAS's

// No tensor cores here: the plain kernels do it all.
bool attention_mma_supported(DType, int64_t) { return false; }
void attention_forward_mma(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, const AttentionSizes&,
                           const DeviceMask&) {
    check(false, "attention on tensor cores is not for the CPU");
}
void attention_backward_keys_mma(__nv_bfloat16*, __nv_bfloat16*, const AttentionBackwardInputs&, const AttentionSizes&, const DeviceMask&) {
    check(false, "attention on tensor cores is not for the CPU");
}
void attention_backward_queries_mma(__nv_bfloat16*, const AttentionBackwardInputs&, const AttentionSizes&, const DeviceMask&) {
    check(false, "attention on tensor cores is not for the CPU");
}

}  // namespace ops
}  // namespace ultrascale
