// The shapes of the experts' operations, checked the same way on both backends.
#pragma once

#include "ops_experts.h"

namespace ultrascale::ops {

inline constexpr int64_t most_experts = 1024;

struct RouterSizes {
    int64_t N, E, k;
};
inline RouterSizes router_sizes(const Tensor& experts, const Tensor& scores,
                                const RouterSettings& s) {
    const RouterSizes n = {experts.rows(), scores.cols(), s.top_k};
    check(experts.dtype() == DType::int32 && experts.cols() == n.k, "router: experts is (N, k)");
    check(scores.dtype() == DType::fp32 && scores.numel() == n.N * n.E,
          "router: scores is (N, E) fp32");
    check(n.E >= 1 && n.E <= most_experts, "router: 1 to 1024 experts");
    check(s.groups >= 1 && n.E % s.groups == 0 && s.top_groups >= 1 && s.top_groups <= s.groups,
          "router: groups divide the experts");
    check(n.k >= 1 && n.k <= s.top_groups * (n.E / s.groups),
          "router: the chosen groups have at least k experts");
    return n;
}
inline void check_fp32(const Tensor& x, int64_t numel, const char* what) {
    check(x.dtype() == DType::fp32 && x.numel() == numel, what);
}
inline RouterSizes router_forward_sizes(const Tensor& experts, const Tensor& weights,
                                        const Tensor& scores, const Tensor& logits,
                                        const Tensor& bias, const RouterSettings& s) {
    const RouterSizes n = router_sizes(experts, scores, s);
    check_fp32(logits, n.N * n.E, "router_forward: logits is (N, E) fp32");
    check_fp32(weights, n.N * n.k, "router_forward: weights is (N, k) fp32");
    if (bias) check_fp32(bias, n.E, "router_forward: bias is (E) fp32");
    return n;
}
inline RouterSizes router_backward_sizes(const Tensor& dlogits, const Tensor& dweights,
                                         const Tensor& scores, const Tensor& experts,
                                         const RouterSettings& s, const Tensor& dscores) {
    const RouterSizes n = router_sizes(experts, scores, s);
    check_fp32(dlogits, n.N * n.E, "router_backward: dlogits is (N, E) fp32");
    check_fp32(dweights, n.N * n.k, "router_backward: dweights is (N, k) fp32");
    if (dscores) check_fp32(dscores, n.N * n.E, "router_backward: dscores is (N, E) fp32");
    return n;
}

inline void check_sort(const Tensor& counts, const Tensor& order, const Tensor& row_map,
                       const Tensor& experts) {
    check(counts.dtype() == DType::int32 && order.dtype() == DType::int32 &&
              row_map.dtype() == DType::int32 && experts.dtype() == DType::int32,
          "sort_by_expert: int32");
    check(order.numel() == experts.numel() && row_map.numel() == experts.numel(),
          "sort_by_expert: order (R) and row_map (N, k) have an element for each choice");
    check(counts.numel() >= 1 && counts.numel() <= most_experts, "sort_by_expert: 1 to 1024");
}

struct RankSizes {
    int64_t N, ranks, k;
};
// by_rank: ranks of ranks_of_experts, row_map of experts_of_rows
inline RankSizes rank_sizes(const Tensor& by_rank, const Tensor& experts, int64_t each) {
    const RankSizes n = {experts.rows(), by_rank.cols(), experts.cols()};
    check(by_rank.dtype() == DType::int32 && experts.dtype() == DType::int32,
          "ranks_of_experts, experts_of_rows: int32");
    check(by_rank.numel() == n.N * n.ranks,
          "ranks_of_experts, experts_of_rows: a column for each rank, a row for each token");
    check(each >= 1, "ranks_of_experts, experts_of_rows: a rank has experts");
    return n;
}
inline RankSizes named_sizes(const Tensor& named, const Tensor& row_map, const Tensor& experts,
                             int64_t each) {
    const RankSizes n = rank_sizes(row_map, experts, each);
    check(named.dtype() == DType::int32 && named.cols() == n.k,
          "experts_of_rows: named is (S, k) int32");
    return n;
}

struct RowMapSizes {
    int64_t N, k, R, h;
};
// tokens: y of sum_rows, x of scatter_rows
inline RowMapSizes row_map_sizes(const Tensor& tokens, const Tensor& rows, const Tensor& row_map) {
    const RowMapSizes n = {row_map.rows(), row_map.cols(), rows.rows(), rows.cols()};
    check(row_map.dtype() == DType::int32, "sum_rows, scatter_rows: row_map is int32");
    check(tokens.dtype() == rows.dtype() && tokens.numel() == n.N * n.h,
          "sum_rows, scatter_rows: a token's row is like one of rows");
    return n;
}
inline RowMapSizes sum_rows_sizes(const Tensor& y, const Tensor& rows, const Tensor& row_map,
                                  const Tensor& residual) {
    const RowMapSizes n = row_map_sizes(y, rows, row_map);
    check(!residual || (residual.numel() == n.N * n.h && residual.dtype() == y.dtype()),
          "sum_rows: residual is (N, h)");
    return n;
}

// Returns the number of blocks.
inline int64_t packed_blocks(const Tensor& packed, const Tensor& x) {
    check(x.cols() % packed_block == 0, "pack_fp8_rows: h is a multiple of 128");
    check(packed.dtype() == x.dtype() && packed.rows() == x.rows() &&
              packed.cols() == packed_columns(x.cols(), x.dtype()),
          "pack_fp8_rows: packed (N, packed_columns(h)), of the same dtype as x (N, h)");
    return x.numel() / packed_block;
}

struct GroupSizes {
    int64_t G, R, out, in;
};
// y: y or dy; x: x or dx; w: w or dw
inline GroupSizes group_sizes(const Tensor& y, const Tensor& x, const Tensor& w,
                              const Tensor& counts) {
    check(w.shape().size() == 3, "grouped_matmul: W is (G, out, in)");
    const GroupSizes n = {w.size(0), y.rows(), w.size(1), w.size(2)};
    check(counts.dtype() == DType::int32 && counts.numel() == n.G && n.G <= most_experts,
          "grouped_matmul: counts is (G) int32");
    check(y.cols() == n.out && x.cols() == n.in && x.rows() == n.R,
          "grouped_matmul: x (R, in), y (R, out)");
    check(x.dtype() == y.dtype(), "grouped_matmul: rows share their dtype");
    return n;
}
// The FLOPs if all rows are in a group, since the host does not know the counts.
inline double group_flops(const GroupSizes& n) {
    return 2.0 * double(n.R) * double(n.out) * double(n.in);
}

}  // namespace ultrascale::ops
