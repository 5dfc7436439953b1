// The shapes of the balance's operations, checked the same way on both backends.
#pragma once

#include "ops_balance.h"

namespace ultrascale::ops {

struct BalanceSizes {
    int64_t N, E, S;
};
inline BalanceSizes statistics_sizes(const Tensor& counts, const Tensor& sums,
                                     const Tensor& experts, const Tensor& scores) {
    const BalanceSizes n = {scores.rows(), scores.cols(), counts.rows()};
    check(counts.cols() == n.E && sums.numel() == counts.numel() && n.S > 0 && n.N % n.S == 0 &&
              experts.rows() == n.N,
          "balance_statistics: counts and sums (S, E), experts (N, k), scores (N, E)");
    return n;
}
inline BalanceSizes gradient_sizes(const Tensor& dscores, const Tensor& factors,
                                   const Tensor& scores) {
    const BalanceSizes n = {scores.rows(), scores.cols(), factors.rows()};
    check(dscores.numel() == scores.numel() && factors.cols() == n.E && n.S > 0 && n.N % n.S == 0,
          "balance_gradient: dscores and scores (N, E), factors (S, E)");
    return n;
}
inline void check_z_loss(const Tensor& dlogits, const Tensor& logits) {
    check(dlogits.numel() == logits.numel(), "z_loss_backward: dlogits and logits (N, E)");
}
// Returns the number of choices, N k.
inline int64_t choices_of_slots(const Tensor& row_map, const Tensor& experts,
                                const Tensor& sorted_order, const Tensor& sorted_row_map,
                                const Tensor& weights) {
    const int64_t R = experts.numel();
    check(row_map.numel() == R && sorted_order.numel() == R && sorted_row_map.numel() == R &&
              (!weights || weights.numel() == R),
          "capacity_slots: counts (E), all else (N, k)");
    return R;
}

}  // namespace ultrascale::ops
