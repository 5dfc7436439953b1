// Operations on matrices of 8-bit numbers that only mixed precision needs: products, operations
// whose result is written in 8 bits, transposition, scales from earlier magnitudes; and numbers of
// 12 bits. The conventions of core/ops.h and core/ops_fp8.h hold here, too.
//
// Tensor cores multiply rows with rows (both operands have k along their rows, "K-major": Hopper
// takes fp8 in no other layout), so a linear needs each of its matrices in two orientations:
//
//     forward   y  (N, F) = x  (N, h)  W^T (h, F)      x (N, h),    W (F, h)        k = h
//     input     dx (N, h) = dy (N, F)  W   (F, h)      dy (N, F),   W^T (h, F)      k = F
//     weight    dW (F, h) = dy^T (F, N)  x (N, h)      dy^T (F, N), x^T (h, N)      k = N
//
// In the transpose, a row's groups run down the original columns. So the scales of rows and tiles
// differ between the two orientations; those of the tensor and of blocks are the same.
#pragma once

#include "core/ops_fp8.h"

namespace ultrascale::ops {

// to (C, R) = the transpose of from (R, C); both are e4m3 or both are e5m2. With scales of the
// tensor or of blocks the numbers are the same. With scales of tiles or rows they are scaled anew,
// and rounded a second time. (With scales that are powers of two, only numbers that become
// subnormal are rounded.)
void transpose_quantised(const Quantised& to, const Quantised& from, const Scaling& scaling);

// scale (1) = the scale of a whole tensor whose largest magnitude is amax (1). If it is `given` to
// quantise(), it saves the pass that searches for the amax. Both stay on the device.
void scale_of_amax(Tensor scale, const Tensor& amax, DType dtype, bool powers_of_two);
// Computes the delayed scale: history[step % n] = amax, then scale (1) = the history's largest
// number / the largest number of `dtype`, times 2^margin. A history (n) fp32 of zeros gives 1. All
// tensors stay on the device. (Transformer Engine: n = 1024, margin 0)
void delayed_scale(Tensor scale, Tensor history, const Tensor& amax, int64_t step, DType dtype,
                   int margin = 0);

// ---- products -----------------------------------------------------------------------------------
// d (M, N) = a (M, K) b (N, K)^T + addend. d is bf16, fp16 or fp32. addend is empty, or has d's
// shape and dtype: a residual, or d itself to accumulate. Groups of (a, b): (tensor, tensor); (row,
// row); (tile, block) for forward and input; (tile, tile) for weight. As tensor cores require, a
// and b are not both e5m2, and with tiles b is e4m3; on CUDA M, N and K are multiples of 16.
//
// Tensor cores keep 14 bits of a sum (emulated in accumulator.h). With tiles the sum moves to fp32
// after every 128 products; with other scales when cuBLAS decides, but never with `fast`. The CPU
// multiplies the dequantised numbers in fp32.
struct Fp8Product {
    ScaleGroup a = ScaleGroup::tensor, b = ScaleGroup::tensor;
    bool fast = false;
};
void matmul_fp8(Tensor d, const Quantised& a, const Quantised& b, const Fp8Product& product,
                const Tensor& addend = {});
// Returns "" if this rank's device has these products, otherwise what it would need.
const char* fp8_missing(ScaleGroup group);

// ---- operations whose result is written in 8 bits -----------------------------------------------
// Does what rmsnorm_forward or swiglu_forward (ops.h) and then quantise do, with the same bits,
// since the result is rounded to the input's dtype first. Groups: tensor (one pass if the scale is
// given; otherwise the input is read twice), row and tile (one pass). amax is used as in quantise.
void rmsnorm_forward_quantised(const Quantised& y /* (N, h) */, Tensor rstd, const Tensor& x,
                               const Tensor& weight, float eps, const Scaling& scaling,
                               Tensor amax = {});
void swiglu_forward_quantised(const Quantised& y /* (N, F) */, const Tensor& gate_up,
                              const Scaling& scaling, Tensor amax = {});

// ---- 12 bits ------------------------------------------------------------------------------------
// e5m6, for activations that are kept until backward (DeepSeek-V3: attention's output, the input of
// o_proj). packed (R, 3 C / 8) int32 has 8 numbers in 12 bytes; scales of tiles are powers of two.
// C is a multiple of 128.
void pack_e5m6(Tensor packed /* (R, 3 C / 8) int32 */, Tensor scales /* (C / 128, R) fp32 */,
               const Tensor& x);
void unpack_e5m6(Tensor x, const Tensor& packed, const Tensor& scales);

}  // namespace ultrascale::ops
