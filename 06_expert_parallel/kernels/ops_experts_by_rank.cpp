// One row for each rank: where a token's experts are, and for which of them a row is.
#include "cpu/ops_common.h"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

namespace {

bool is_on(int64_t rank, int64_t expert, int64_t each) {
    return expert >= 0 && expert / each == rank;
}

}  // namespace

void ranks_of_experts(Tensor ranks, const Tensor& experts, int64_t each) {
    const RankSizes sizes = rank_sizes(ranks, experts, each);
    OpSpan span("ranks_of_experts", 0, bytes_of(ranks, experts));
    const int32_t* expert = experts.as<int32_t>();
    int32_t* const to = ranks.as<int32_t>();
    for (int64_t t = 0; t < sizes.N; ++t, expert += sizes.k)
        for (int64_t r = 0; r < sizes.ranks; ++r) {
            const bool goes =
                std::any_of(expert, expert + sizes.k, [&](int32_t e) { return is_on(r, e, each); });
            to[t * sizes.ranks + r] = goes ? int32_t(r) : -1;
        }
}

void experts_of_rows(Tensor named, const Tensor& row_map, const Tensor& experts, int64_t each) {
    const RankSizes sizes = named_sizes(named, row_map, experts, each);
    OpSpan span("experts_of_rows", 0, bytes_of(named, row_map, experts));
    const int32_t *expert = experts.as<int32_t>(), *at = row_map.as<int32_t>();
    int32_t* const names = named.as<int32_t>();
    for (int64_t t = 0; t < sizes.N; ++t, expert += sizes.k)
        for (int64_t r = 0; r < sizes.ranks; ++r) {
            const int64_t row = at[t * sizes.ranks + r];
            check(row < named.rows(), "experts_of_rows: a row outside of named");
            for (int64_t j = 0; j < sizes.k && row >= 0; ++j)
                names[row * sizes.k + j] =
                    is_on(r, expert[j], each) ? int32_t(expert[j] - r * each) : -1;
        }
}

}  // namespace ultrascale::ops
