// Shared by both backends' ops_latent: each operation's checks, and the span that it opens. Private
// to common/cpu and common/cuda.
#pragma once

#include "error.h"
#include "ops_latent.h"
#include "trace.h"

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
inline OpSpan copy_columns_span(const Tensor& to, int64_t to_first, const Tensor& from,
                                int64_t from_first, int64_t count) {
    check_columns(to, to_first, count), check_columns(from, from_first, count);
    return OpSpan("copy_columns", 0, 2.0 * double(to.rows() * count * dtype_bytes(to.dtype())));
}
inline OpSpan sum_columns_span(const Tensor& to, const Tensor& from, int64_t from_first) {
    check_columns(from, from_first, to.cols());
    const int64_t n = rows_to_one(from, to);
    return OpSpan("sum_columns", double(n * to.numel()), double((n + 1) * to.bytes()));
}
inline OpSpan rotate_pairs_span(const Tensor& x, const Tensor& positions,
                                const Tensor& frequencies) {
    check(x.shape().size() == 4 && positions.numel() == x.size(0) * x.size(1),
          "rotate_pairs: x is (B, T, H, D) and positions (B, T)");
    check(2 * frequencies.numel() <= x.size(3), "rotate_pairs: frequencies (R/2) with R <= D");
    const double pairs = double(positions.numel() * x.size(2) * frequencies.numel());
    return OpSpan("rotate_pairs", 6 * pairs, 4 * pairs * double(dtype_bytes(x.dtype())));
}

}  // namespace ultrascale::ops
