// A stable sort of choices by expert: count, add up, place.
#include "cpu/ops_common.h"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

void sort_by_expert(Tensor counts, Tensor order, Tensor row_map, const Tensor& experts) {
    check_sort(counts, order, row_map, experts);
    OpSpan span("sort_by_expert", 0, bytes_of(counts, order, row_map, experts, experts));
    const int64_t R = experts.numel(), E = counts.numel();
    const int32_t* expert = experts.as<int32_t>();
    int32_t *count = counts.as<int32_t>(), *to = row_map.as<int32_t>(), *from = order.as<int32_t>();
    std::fill(count, count + E, 0);
    for (int64_t i = 0; i < R; ++i) {
        check(expert[i] >= -1 && expert[i] < E, "sort_by_expert: an expert that does not exist");
        if (expert[i] >= 0) ++count[expert[i]];
    }
    int32_t next[most_experts], rows = 0;
    for (int64_t e = 0; e < E; ++e) next[e] = rows, rows += count[e];
    std::fill(from + rows, from + R, 0);
    for (int64_t i = 0; i < R; ++i) {
        to[i] = expert[i] < 0 ? -1 : next[expert[i]]++;
        if (to[i] >= 0) from[to[i]] = int32_t(i);
    }
}

}  // namespace ultrascale::ops
