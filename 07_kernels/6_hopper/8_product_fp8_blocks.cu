// The product in fp8 as DeepSeek-V3 was trained with it: a scale for each 1 x 128 of A (128
// features of one token) and for each 128 x 128 of B (weights). A number that is far larger than
// the others then costs precision only in its own block; with one scale per matrix, all others
// would be rounded in steps that fit this number. And tensor cores add up no more than 128 k.
//
//     A  1 x 128 blocks                  B  128 x 128 blocks             for each 128 of K:
//     row 0  [ s00 ][ s01 ][ s02 ]       [  t00  ][  t01  ]              P   = the 128 k's products
//     row 1  [ s10 ][ s11 ][ s12 ]       [  t10  ][  t11  ]              sum += s t P
//
// Tensor cores sum P; CUDA cores add s t P, in fp32: the "promotion".
//
// Why promotion: the loss of a product in tensor cores grows with the sum to which it is added
// (7_product_fp8.cu). P stays small, so for any K only 1.3e-4 of it is lost, or 6e-4 if all
// products have one sign. And the scales cost nothing: the promotion is a multiply-add anyway.
//
// The price is registers for P besides the sums. 64 x 256 of both would take 256 per thread, so P
// is 64 x 128: two halves, one after the other (128 + 64 registers). And while a warpgroup
// promotes, it has no products in flight, so the other one must have some.
//
//     tensor cores  | 0: P left  | 1: P left  | 0: P right | 1: P right | 0: P left
//     consumer 0    |   waits    |promote|....|   waits    |promote|....|
//     consumer 1    |promote|....|   waits    |promote|....|   waits    |
//
// A P takes the tensor cores 256 cycles; promoting it takes 64 multiply-adds per thread, about 100
// cycles. "....": the consumer has asked for its next P, which has to wait.
//
// The two consumers come to alternate by themselves: the one whose products come second promotes
// later. Scales are loaded from memory to registers a step before they are needed. Everything else
// is as in 7_product_fp8.cu.
//
// 08_mixed_precision trains with this kernel on Hopper (its kernels/fp8_blocks_wgmma.cu). There it
// also has a form for the gradients of weights, in which each column of the result has a scale of
// its own (both operands are activations, or gradients of activations, with 1 x 128 blocks), and
// can add to fp32. It needs Hopper's PTX, which neither the CPU nor other GPUs execute.
//
// DeepSeek-AI et al. 2024, DeepSeek-V3 Technical Report, section 3.3.2;
// github.com/deepseek-ai/DeepGEMM.
#include "../kernel.h"

#ifdef ULTRASCALE_CUDA
#include "08_mixed_precision/kernels/fp8_blocks.h"
#endif

namespace ultrascale::kernels {
namespace {

#ifdef ULTRASCALE_CUDA
// Four e4m3 are in an int32 (problem.h).
void run(const Arguments& args) {
    const Tensor &a = args.in[0], &b = args.in[1], &scales_a = args.in[2], &scales_b = args.in[3];
    const ops::Fp8Blocks product = {args.size[0],
                                    args.size[1],
                                    args.size[2],
                                    a.data(),
                                    b.data(),
                                    4 * a.cols(),
                                    4 * b.cols(),
                                    scales_a.as<float>(),
                                    scales_b.as<float>(),
                                    scales_b.cols()};
    ops::fp8_blocks_wgmma(args.out, product, false);
}
#else
constexpr void (*run)(const Arguments&) = nullptr;
#endif

const Registered here{"product fp8 blocks", "scales for blocks; sums of 128 k promoted to fp32",
                      run, Needs::hopper};

}  // namespace
}  // namespace ultrascale::kernels
