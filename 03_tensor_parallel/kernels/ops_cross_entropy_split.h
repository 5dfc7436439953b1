// The loss of a vocabulary that is split over ranks, which tensor parallelism's output head
// computes. The conventions of core/ops.h hold.
#pragma once

#include "core/ops.h"

namespace ultrascale::ops {

// Cross-entropy (core/ops.h) of which each rank has only the logits (N, V') of the V' tokens from
// first_token on. stats (3, N) fp32, for each row: the largest logit; the sum of exp(logit -
// largest); the target's logit, or 0 if the target is not in this shard.
void cross_entropy_partial(Tensor stats, const Tensor& logits, const Tensor& targets,
                           int64_t first_token);
// all_stats (n, 3, N): the stats of all n shards. Losses and, with dscale, gradients as above. An
// ignored target gives 0 for both; a target in no shard gives NaN or a wrong loss.
void cross_entropy_combine(Tensor losses, Tensor logits, const Tensor& all_stats,
                           const Tensor& targets, int64_t first_token, float dscale);

// What both backends check.
struct SplitSizes {
    int64_t N, V, shards;
};
inline SplitSizes partial_sizes(const Tensor& stats, const Tensor& logits, const Tensor& targets) {
    const int64_t N = targets.numel(), V = logits.cols();
    check(logits.numel() == N * V && stats.numel() == 3 * N,
          "cross_entropy_partial: logits (N, V'), targets (N), stats (3, N)");
    return {N, V, 1};
}
inline SplitSizes combine_sizes(const Tensor& losses, const Tensor& logits, const Tensor& all_stats,
                                const Tensor& targets) {
    const int64_t N = targets.numel(), V = logits.cols();
    check(
        logits.numel() == N * V && losses.numel() == N && N > 0 && all_stats.numel() % (3 * N) == 0,
        "cross_entropy_combine: logits (N, V'), losses and targets (N), all_stats (n, 3, N)");
    return {N, V, all_stats.numel() / (3 * N)};
}

}  // namespace ultrascale::ops
