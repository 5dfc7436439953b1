// The functions that the CUDA operations call besides the kernels that the CPU can execute.
#include "cuda/attention/attention.cuh"
#include "cuda/cuda_common.h"

namespace ultrascale {
namespace ops {

void convert(Tensor to, const Tensor& from) {
    copy(to, from);
}  // declared in cpu/ops_common.h, for OpenBLAS's products

// There are no tensor cores here: the plain kernels do everything.
bool attention_mma_supported(DType, int64_t) { return false; }
void attention_forward_mma(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                           const Tensor&, const AttentionSizes&, const DeviceMask&) {
    check(false, "attention on tensor cores is not for the CPU");
}
bool attention_wgmma_supported(DType, const AttentionSizes&) { return false; }
void attention_forward_wgmma(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                             const Tensor&, const AttentionSizes&, const DeviceMask&) {
    check(false, "attention on tensor cores is not for the CPU");
}
void attention_backward_wgmma(const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const Tensor&, const AttentionSizes&, const DeviceMask&,
                              AttentionAdds) {
    check(false, "attention on tensor cores is not for the CPU");
}
OpenDq open_dq_wgmma(const Tensor&, const Tensor&, const Tensor&, int64_t) { return {}; }
void attention_backward_wgmma(const OpenDq&, int64_t, int64_t, const Tensor&, const Tensor&,
                              const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                              const AttentionSizes&, const DeviceMask&, bool) {
    check(false, "attention on tensor cores is not for the CPU");
}
void close_dq_wgmma(const Tensor&, const OpenDq&, const Tensor&) {
    check(false, "attention on tensor cores is not for the CPU");
}
void attention_backward_keys_mma(__nv_bfloat16*, __nv_bfloat16*, const AttentionBackwardInputs&,
                                 const AttentionSizes&, const DeviceMask&) {
    check(false, "attention on tensor cores is not for the CPU");
}
void attention_backward_queries_mma(__nv_bfloat16*, const AttentionBackwardInputs&,
                                    const AttentionSizes&, const DeviceMask&) {
    check(false, "attention on tensor cores is not for the CPU");
}

}  // namespace ops
}  // namespace ultrascale
