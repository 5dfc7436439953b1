// The operations of a mixture of experts: routing, rows in the order of their experts and back, and
// matrix products in groups. The conventions of core/ops.h hold.
//
//     logits (N, E)
//       |  router_forward       experts, weights (N, k)
//       v  sort_by_expert       counts (E), order (R), row_map (N, k)
//     x (N, h) -- scatter_rows -> rows (R, h)  -- grouped_matmul, swiglu, grouped_matmul --.
//     y (N, h) <-- sum_rows ----- rows (R, h)  <-------------------------------------------'
//
// Letters: N tokens, E experts, k choices of each token, R rows: N k, or those that came in from
// other ranks. There are no atomics: every sum has a fixed order, and the host never waits for
// counts.
#pragma once

#include "core/tensor.h"
#include "model/router_settings.h"

namespace ultrascale::ops {

// ---- router -------------------------------------------------------------------------------------
// scores (N, E) fp32 = softmax or sigmoid of logits (N, E) fp32. experts (N, k) int32 = those with
// the k largest scores + bias (E) fp32 (may be empty), best first, and of equal ones the lower
// index. weights (N, k) fp32 = their scores *without* the bias; if they are renormalised, divided
// by their sum (+ 1e-20 with sigmoid, all of which may underflow); times the scaling factor. E is
// at most 1024. (Shazeer et al. 2017; with sigmoid, groups and bias: DeepSeek-V3, arXiv 2412.19437)
void router_forward(Tensor experts, Tensor weights, Tensor scores, const Tensor& logits,
                    const Tensor& bias, const RouterSettings& settings);
// dlogits (N, E) fp32 from dweights (N, k) fp32 and, if given, dscores (N, E) fp32, the gradient of
// a loss that reads the scores. Choices have no gradient.
void router_backward(Tensor dlogits, const Tensor& dweights, const Tensor& scores,
                     const Tensor& experts, const RouterSettings& settings,
                     const Tensor& dscores = {});

// ---- rows by expert -----------------------------------------------------------------------------
// A stable sort of the R = N k choices by expert: counts (E) int32, the rows of each expert; order
// (R) int32, the choice n k + j of each sorted row; row_map (N, k) int32, the inverse. A choice of
// expert -1 is dropped: its row_map is -1 and it has no row, so the last rows of `order` are unused
// and 0. scatter_rows(rows, x, row_map) puts x's rows in this order.
void sort_by_expert(Tensor counts, Tensor order, Tensor row_map, const Tensor& experts);

// rows(row_map(n, j)) = x(n): a token's row goes to the row of each of its choices. x (N, h);
// row_map (N, k) int32: -1 means none, and no row occurs twice. Rows (R, h) that it does not name
// keep their values.
void scatter_rows(Tensor rows, const Tensor& x, const Tensor& row_map);
// y (N, h) = residual + sum over j, in order, of rows(row_map(n, j)); added in fp32 and rounded
// once. A row_map of -1 adds nothing; residual may be empty, or y. sum_rows and scatter_rows are
// each other's backward.
void sum_rows(Tensor y, const Tensor& rows, const Tensor& row_map, const Tensor& residual = {});

// ---- rows in 8 bits -----------------------------------------------------------------------------
// A row of h elements as h numbers in e4m3 and then an fp32 scale for each 128 of them (ops_fp8.h:
// group `tile`). It is stored in the elements of x's dtype, of which it takes packed_columns(), so
// that it travels like any other row. Only a copy keeps it as it is. h is a multiple of 128.
inline constexpr int64_t packed_block = 128;
inline int64_t packed_columns(int64_t h, DType dtype) {
    return (h + h / packed_block * 4) / dtype_bytes(dtype);
}
// packed (N, packed_columns) from x (N, h); and back. x is fp32, bf16 or fp16.
void pack_fp8_rows(Tensor packed, const Tensor& x);
void unpack_fp8_rows(Tensor x, const Tensor& packed);

// ---- one row for each rank ----------------------------------------------------------------------
// Neighbouring experts are on one rank, `each` of them on every rank. A token's row goes once to
// each rank that has some of its experts.
//
// ranks (N, n) int32: r in column r if one of the token's experts is on rank r, else -1. experts
// (N, k) int32; an expert of -1 is nowhere. sort_by_expert then finds row_map (N, n).
void ranks_of_experts(Tensor ranks, const Tensor& experts, int64_t each);
// named (S, k) int32: the experts of the row at row_map(t, r), counted from rank r's first expert,
// and -1 in the columns of experts that are on other ranks.
void experts_of_rows(Tensor named, const Tensor& row_map, const Tensor& experts, int64_t each);

// ---- products in groups -------------------------------------------------------------------------
// Rows are in groups of neighbours: counts (G) int32, on the device, is the number of rows of each
// group, in order. A group may be empty. Rows after the last group are neither read nor written. W
// (G, out, in) has one matrix for each group. Sums are in fp32.
//
// y (R, out): y_g = x_g W_g^T, x (R, in)
void grouped_matmul(Tensor y, const Tensor& x, const Tensor& w, const Tensor& counts);
// dx (R, in): dx_g = dy_g W_g
void grouped_matmul_backward_input(Tensor dx, const Tensor& dy, const Tensor& w,
                                   const Tensor& counts);
// dw (G, out, in): dw_g = dy_g^T x_g + addend_g. addend may be empty, or dw itself to accumulate;
// both may be fp32 while x and dy have 16 bits. An empty group's dw_g is the addend, or zero.
void grouped_matmul_backward_weight(Tensor dw, const Tensor& dy, const Tensor& x,
                                    const Tensor& counts, const Tensor& addend = {});

}  // namespace ultrascale::ops
