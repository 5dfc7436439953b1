// One row for each rank: where a token's experts are, and for which of them a row is. There is a
// thread for each token and rank; the k experts of a token come from L1 for all ranks but one.
#include "cuda/ops_common.cuh"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256;

struct Pairs {  // of tokens and ranks
    const int32_t* experts;
    int ranks, k, each;
    int64_t count;

    __device__ int64_t here() const { return int64_t(blockIdx.x) * threads + threadIdx.x; }
    // The j-th expert of pair i's token, counted from its rank's first one; or -1.
    __device__ int expert(int64_t i, int j) const {
        const int rank = int(i % ranks), e = experts[i / ranks * k + j];
        return e >= 0 && e / each == rank ? e - rank * each : -1;
    }
};

__global__ void __launch_bounds__(threads) find_ranks(int32_t* to, const Pairs pairs) {
    const int64_t i = pairs.here();
    if (i >= pairs.count) return;
    bool goes = false;
    for (int j = 0; j < pairs.k; ++j) goes |= pairs.expert(i, j) >= 0;
    to[i] = goes ? int(i % pairs.ranks) : -1;
}

__global__ void __launch_bounds__(threads)
    name_experts(int32_t* named, const int32_t* row_map, const Pairs pairs) {
    const int64_t i = pairs.here();
    if (i >= pairs.count || row_map[i] < 0) return;
    for (int j = 0; j < pairs.k; ++j) named[int64_t(row_map[i]) * pairs.k + j] = pairs.expert(i, j);
}

Pairs pairs_of(const Tensor& experts, const RankSizes& sizes, int64_t each) {
    return {.experts = experts.as<int32_t>(),
            .ranks = int(sizes.ranks),
            .k = int(sizes.k),
            .each = int(each),
            .count = sizes.N * sizes.ranks};
}

}  // namespace

void ranks_of_experts(Tensor ranks, const Tensor& experts, int64_t each) {
    const Pairs pairs = pairs_of(experts, rank_sizes(ranks, experts, each), each);
    OpSpan span("ranks_of_experts", 0, bytes_of(ranks, experts));
    if (pairs.count > 0) LAUNCH(find_ranks, unsigned(ceil_div(pairs.count, threads)), threads, 0)
    (ranks.as<int32_t>(), pairs);
}

void experts_of_rows(Tensor named, const Tensor& row_map, const Tensor& experts, int64_t each) {
    const Pairs pairs = pairs_of(experts, named_sizes(named, row_map, experts, each), each);
    OpSpan span("experts_of_rows", 0, bytes_of(named, row_map, experts));
    if (pairs.count > 0) LAUNCH(name_experts, unsigned(ceil_div(pairs.count, threads)), threads, 0)
    (named.as<int32_t>(), row_map.as<int32_t>(), pairs);
}

}  // namespace ultrascale::ops
