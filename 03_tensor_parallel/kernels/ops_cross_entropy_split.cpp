// Softmax cross-entropy over a vocabulary that is split over ranks: a rank's statistics of each
// row, and the loss and gradient from those of all ranks.
#include "ops_cross_entropy_split.h"

#include "cpu/ops_common.h"

namespace ultrascale::ops {

namespace {

struct RowStats {
    float highest, sum, at_target;
};

template <class T>
RowStats stats_of_row(const T* logits, int64_t V, int64_t target) {
    const auto [highest, sum] = softmax_sums(logits, V);
    return {highest, sum, target >= 0 && target < V ? float(logits[target]) : 0.0f};
}

// The whole row's statistics from those of n shards (n, 3, N). `stats` is at the row's first one.
RowStats combined(const float* stats, int64_t n, int64_t N) {
    // exercise 03.3 begin: the largest of all; sums relative to it; the target is in one shard
    RowStats all{-INFINITY, 0, 0};
    for (int64_t r = 0; r < n; ++r) all.highest = std::max(all.highest, stats[r * 3 * N]);
    double sum = 0;
    for (int64_t r = 0; r < n; ++r) {
        const float *highest = stats + r * 3 * N, *shard_sum = highest + N,
                    *at_target = shard_sum + N;
        if (*highest != -INFINITY)
            sum += double(*shard_sum) * std::exp(double(*highest) - double(all.highest));
        all.at_target += *at_target;
    }
    all.sum = float(sum);
    return all;
    // exercise 03.3 end
}

}  // namespace

void cross_entropy_partial(Tensor stats, const Tensor& logits, const Tensor& targets,
                           int64_t first_token) {
    const SplitSizes sizes = partial_sizes(stats, logits, targets);
    const int64_t N = sizes.N, V = sizes.V;
    OpSpan span("cross_entropy_partial", 3.0 * double(N * V), bytes_of(logits, stats, targets));
    const int32_t* target = targets.as<int32_t>();
    float* out = stats.as<float>();
    with_type(logits.dtype(), [&]<class T>(T) {
        const T* rows = logits.as<T>();
#pragma omp parallel for if (N * V > parallel_threshold / 4)
        for (int64_t n = 0; n < N; ++n) {
            const bool counted = target[n] != ignored_target;
            const RowStats row =
                stats_of_row(rows + n * V, V, counted ? target[n] - first_token : -1);
            out[n] = row.highest, out[N + n] = row.sum, out[2 * N + n] = row.at_target;
        }
    });
}

void cross_entropy_combine(Tensor losses, Tensor logits, const Tensor& all_stats,
                           const Tensor& targets, int64_t first_token, float dscale) {
    const SplitSizes sizes = combine_sizes(losses, logits, all_stats, targets);
    const int64_t N = sizes.N, V = sizes.V;
    OpSpan span("cross_entropy_combine", dscale != 0 ? 3.0 * double(N * V) : 0,
                bytes_of(losses, all_stats, targets) + (dscale != 0 ? 2 * bytes_of(logits) : 0));
    const int32_t* target = targets.as<int32_t>();
    const float* stats = all_stats.as<float>();
    float* loss = losses.as<float>();
    with_type(logits.dtype(), [&]<class T>(T) {
        T* rows = logits.as<T>();
#pragma omp parallel for if (N * V > parallel_threshold / 4)
        for (int64_t n = 0; n < N; ++n) {
            T* row = rows + n * V;
            if (target[n] == ignored_target) {
                loss[n] = 0;
                if (dscale != 0) std::fill(row, row + V, T(0.0f));
                continue;
            }
            const RowStats all = combined(stats + n, sizes.shards, N);
            const float at_target = all.at_target - all.highest;
            loss[n] = std::log(all.sum) - at_target;
            if (dscale == 0) continue;
            const float factor = dscale / all.sum;
#pragma omp simd
            for (int64_t i = 0; i < V; ++i)
                store(row[i], exp_fast(float(row[i]) - all.highest) * factor);
            const int64_t at = target[n] - first_token;
            if (at >= 0 && at < V)
                store(row[at], (exp_fast(at_target) / all.sum - 1.0f) * dscale);  // rounded once
        }
    });
}

}  // namespace ultrascale::ops
