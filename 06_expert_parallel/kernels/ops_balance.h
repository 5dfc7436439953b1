// Operations around a router of a mixture of experts: its logits, the statistics that balance
// losses read, their gradients, and the rows over an expert's capacity. Like the operations of
// ops_experts.h, they add in one fixed order and never let the host wait.
//
// Letters: N tokens, E experts, k choices of each token, S segments of N / S neighbouring tokens
// each (all tokens, or those of each sequence). p: a router's scores. `normalise` divides them by
// their sum over the experts, for sigmoids; a softmax's are probabilities already.
#pragma once

#include "core/tensor.h"

namespace ultrascale::ops {

// logits (N, E) fp32 = x (N, h) W^T, W (E, h) of x's dtype. It is a matrix product, but on the CPU
// a token's logits have the same bits whatever the other rows are. OpenBLAS adds up a narrow
// product in an order that depends on the number of rows, and a router's choice must not depend on
// which rank computes it.
void router_logits(Tensor logits, const Tensor& x, const Tensor& weight);

// counts (S, E) fp32: choices of each expert in each segment, from experts (N, k) int32; sums (S,
// E) fp32: the sum of p over the segment's tokens, from scores (N, E) fp32.
void balance_statistics(Tensor counts, Tensor sums, const Tensor& experts, const Tensor& scores,
                        bool normalise);
// dscores (N, E) fp32: the gradient of the sum over tokens n and experts e of factors(s(n), e) *
// p(n, e), where s(n) is the token's segment; factors (S, E) fp32 are constants.
void balance_gradient(Tensor dscores, const Tensor& factors, const Tensor& scores, bool normalise);

// total (1) fp64 += the sum over tokens of the squared log-sum-exp of logits (N, E) fp32.
void z_loss(Tensor total, const Tensor& logits);
// dlogits (N, E) fp32 += factor * the gradient of z_loss's sum.
void z_loss_backward(Tensor dlogits, const Tensor& logits, float factor);

// Assigns rows to the choices, if experts have a fixed capacity C: row_map (N, k) int32 = e C + i
// for a token's choice of expert e that is the expert's i-th row, or -1 if the expert already has C
// rows. sorted_order, sorted_row_map and counts are sort_by_expert's of `experts` (N, k). An
// expert's rows are in the order of tokens; with weights (N, k) fp32 the largest comes first, and
// of equal ones the earlier token.
void capacity_slots(Tensor row_map, const Tensor& experts, const Tensor& sorted_order,
                    const Tensor& sorted_row_map, const Tensor& counts, int64_t capacity,
                    const Tensor& weights = {});

}  // namespace ultrascale::ops
