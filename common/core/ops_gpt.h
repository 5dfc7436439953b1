// The operations of a GPT-2 that a Llama does not have, and dropout with masks that are kept. The
// conventions are those of ops.h.
#pragma once

#include "ops.h"

namespace ultrascale::ops {

// ---- LayerNorm: y = (x - mean) * rstd * weight + bias (Ba et al. 2016) --------------------------
// statistics (N, 2) fp32: each row's mean, and rstd = 1 / sqrt(variance + eps).
void layernorm_forward(Tensor y, Tensor statistics, const Tensor& x, const Tensor& weight,
                       const Tensor& bias, float eps);
// dx = dresidual + the norm's input gradient (dresidual may be empty, or dx itself); adds to
// dweight (h) and dbias (h), or overwrites them.
void layernorm_backward(Tensor dx, Tensor dweight, Tensor dbias, const Tensor& dy, const Tensor& x,
                        const Tensor& statistics, const Tensor& weight,
                        const Tensor& dresidual = {}, bool add = true);

// ---- GELU (Hendrycks & Gimpel 2016), in GPT-2's approximation -----------------------------------
// out = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))
void gelu_forward(Tensor out, const Tensor& x);
// dx = dout * GELU'(x); and dout is overwritten with GELU(x), which forward need not keep.
void gelu_backward(Tensor dx, Tensor dout, const Tensor& x);

// ---- biases: matmul() adds them -----------------------------------------------------------------
// dbias (n), which may be fp32, = the sum of the rows of dy (N, n) + addend, which is empty or
// dbias.
void column_sums(Tensor dbias, const Tensor& dy, const Tensor& addend = {});

// ---- dropout with a mask that is kept -----------------------------------------------------------
// mask (e4m3) = 1 for each element of a tensor that dropout() of ops.h would keep, else 0.
void dropout_mask(Tensor mask, float p, const Random& random, uint64_t first);
// y = mask x / (1 - p) + addend, if given. y may be x or addend.
void dropout_by_mask(Tensor y, const Tensor& mask, const Tensor& x, float p,
                     const Tensor& addend = {});

}  // namespace ultrascale::ops
