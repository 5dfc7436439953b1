// What latent attention (model/latent.h) does to columns and heads between its products. The
// conventions are those of ops.h. Tensors are read as matrices (Tensor::rows, cols).
#pragma once

#include "ops.h"

namespace ultrascale::ops {

// Columns to_first .. to_first + count - 1 of `to` = as many columns of `from` from from_first on;
// the other columns stay as they are. `to` has n times as many rows as `from`: each row of `from`
// is copied to n rows, one after the other (a token's, to its n heads). Both have one dtype.
void copy_columns(Tensor to, int64_t to_first, const Tensor& from, int64_t from_first,
                  int64_t count);

// The backward of a copy to n rows: row r of `to` = the sum of rows r n .. r n + n - 1 of `from`,
// of its columns from from_first on. It is added in fp32, in the rows' order.
void sum_columns(Tensor to, const Tensor& from, int64_t from_first);

// Rotary position embedding, in place, of the last R numbers of each head of x (B, T, H, D): the
// neighbours D - R + 2i and D - R + 2i + 1 are rotated by position * frequencies[i]. `back` rotates
// by the negative angles. (A Llama's rope_forward pairs i with i + D/2 instead.)
void rotate_pairs(Tensor x, const Tensor& positions /* (B, T) int32 */,
                  const Tensor& frequencies /* (R/2) fp32 */, bool back = false);

}  // namespace ultrascale::ops
