// FlashAttention-3 (Shah et al. 2024, https://arxiv.org/abs/2407.08608): the kernel with which this
// project trains on Hopper, common/cuda/attention/attention_wgmma_forward.cu. It adds to
// 3_flash_attention_2:
//
//   - The products are wgmma (6_hopper): 128 threads together start a product of 64 x 128 x 16,
//     with both operands in shared memory, and go on. On Hopper mma reaches only some 60 % of the
//     tensor cores' rate.
//   - TMA does the loads. One warp asks for them and needs few registers; the warps that compute
//     get the rest.
//   - The exponentials, which a unit of their own computes at 1/256 of the tensor cores' rate, run
//     while the tensor cores multiply. Otherwise they would take as much time again as the products
//     at D = 64 (4 D FLOP per exponential), and half as much at D = 128:
//
//       warpgroup 0   | products | softmax .... | products | softmax .... |
//       warpgroup 1              | products     | softmax  | products     | softmax
//                                ^ the turn is passed on (bar.arrive, bar.sync), and inside a
//                                  warpgroup the softmax of the next keys begins while this one's
//                                  P V is still running
//
//   - One block for each multiprocessor takes tile after tile, the longest first, and loads the
//     next queries while it computes.
//
// It needs Hopper's PTX, which neither the CPU nor other GPUs execute.
#include "../kernel.h"
#include "core/ops.h"

namespace ultrascale::kernels {
namespace {

#ifdef ULTRASCALE_CUDA
void run(const Arguments& args) {
    const int64_t B = args.size[0], T = args.size[1], H = args.size[2];
    const Tensor lse =
        Tensor::empty({B, H, T}, DType::fp32, Memory::workspace);  // for the backward pass
    ops::attention_forward(args.out, lse, args.in[0], args.in[1], args.in[2], {.causal = true});
}
#else
constexpr void (*run)(const Arguments&) = nullptr;
#endif

const Registered here{"attention", "wgmma, TMA; one warpgroup's softmax under products", run,
                      Needs::hopper};

}  // namespace
}  // namespace ultrascale::kernels
