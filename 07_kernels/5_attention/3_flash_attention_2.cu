// FlashAttention-2 (Dao 2023, https://arxiv.org/abs/2307.08691) on tensor cores: the kernel with
// which this project trains on GPUs before Hopper, common/cuda/attention/attention_mma_forward.cu.
// It adds to 2_flash_attention:
//
//   - The products are mma instructions, 16 x 8 x 16 in bf16 with sums in fp32: tensor cores have
//     some fifteen times the CUDA cores' rate.
//   - P never leaves the registers. A warp has 32 queries of the block's 128 and all keys of a
//     tile, so warps exchange nothing (the first FlashAttention gave them different keys, and added
//     up their parts of O); and the layout in which mma leaves S is the one in which it takes P:
//
//                      K tile: 64 keys                              V tile
//              +---------------------+                           +---------+
//       warp 0 |  S, P: registers    |  each row's max and sum:  |         |   O += P V: registers
//       warp 1 |                     |  four threads' shuffles   |         |
//       warp 2 |                     |                           |         |
//       warp 3 |                     |                           |         |
//              +---------------------+                           +---------+
//
//   - The next K and V tiles are on their way to shared memory (cp.async) while it computes on
//     these.
//
// It needs PTX, which the CPU does not execute.
#include "../kernel.h"
#ifdef ULTRASCALE_CUDA
#include "cuda/attention/attention.cuh"
#endif

namespace ultrascale::kernels {
namespace {

#ifdef ULTRASCALE_CUDA
void run(const Arguments& args) {
    const int64_t B = args.size[0], T = args.size[1], H = args.size[2];
    const Tensor lse =
        Tensor::empty({B, H, T}, DType::fp32, Memory::workspace);  // for the backward pass
    const ops::AttentionSizes sizes = ops::attention_sizes(args.in[0], args.in[1], args.in[2]);
    ops::attention_forward_mma(args.out, lse, args.in[0], args.in[1], args.in[2], sizes,
                               ops::device_mask({.causal = true}, sizes));
}
#else
constexpr void (*run)(const Arguments&) = nullptr;
#endif

const Registered here{"attention", "tensor cores, P in registers, loads ahead", run};

}  // namespace
}  // namespace ultrascale::kernels
