// Converts a mask with a stride to the units of the kernels, which count keys instead of positions.
#include "attention.cuh"
#include "cuda/ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

// keys[i] = the first key at or after position positions[i]; negative if key 0 comes later.
__global__ void __launch_bounds__(threads)
    first_keys(int32_t* keys, const int32_t* positions, int64_t count, int64_t k_offset,
               int64_t stride) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i < count) keys[i] = int32_t(-divide_down(k_offset - positions[i], stride));
}

}  // namespace

AttentionMask counted_in_keys(const AttentionMask& mask) {
    const int64_t shift = shift_in_keys(mask);
    if (mask.stride == 1) return mask;
    const Tensor& starts = mask.document_starts;
    const int64_t prefix = prefix_in_keys(mask);
    if (!starts) return {.causal = mask.causal, .q_offset = shift, .prefix = prefix};
    const Tensor keys = Tensor::empty(starts.shape(), DType::int32, Memory::workspace);
    LAUNCH(first_keys, unsigned(ceil_div(starts.numel(), threads)), threads, 0)
    (data<int32_t>(keys), data<int32_t>(starts), starts.numel(), mask.k_offset, mask.stride);
    return {mask.causal, shift, 0, keys, 1, prefix};
}

}  // namespace ultrascale::ops
