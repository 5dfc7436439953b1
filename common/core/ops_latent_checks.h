// The sizes of latent attention's operations, checked alike on both backends.
#pragma once

#include "error.h"
#include "ops_latent.h"

namespace ultrascale::ops {

// Returns n: how many rows of `many` belong to one row of `few`.
inline int64_t rows_to_one(const Tensor& many, const Tensor& few) {
    check(many.dtype() == few.dtype(), "columns: tensors of two dtypes");
    check(few.rows() > 0 && many.rows() % few.rows() == 0,
          "columns: the rows of one tensor are a multiple of the other's");
    return many.rows() / few.rows();
}
inline void check_columns(const Tensor& x, int64_t first, int64_t count) {
    check(first >= 0 && count >= 0 && first + count <= x.cols(),
          "columns: some of them are outside of the tensor");
}
inline void check_rotation(const Tensor& x, const Tensor& positions, const Tensor& frequencies) {
    check(x.shape().size() == 4 && positions.numel() == x.size(0) * x.size(1),
          "rotate_pairs: x is (B, T, H, D) and positions (B, T)");
    check(2 * frequencies.numel() <= x.size(3), "rotate_pairs: frequencies (R/2) with R <= D");
}

}  // namespace ultrascale::ops
