// Softmax cross-entropy over a vocabulary that is split over ranks. Each block handles a row.
// `partial` reads the logits once, maximum and sum together (online softmax: Milakov & Gimelshein
// 2018, https://arxiv.org/abs/1805.02867); `combine` reads and writes them once.
#include "cuda/ops_common.cuh"
#include "ops_cross_entropy_split.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256, unroll = 4;  // packs that a thread has in flight at once

// e^(x - highest), or 0 if all logits so far are -infinity.
__device__ float exp_below(float x, float highest) {
    return highest == -INFINITY ? 0.0f : exp2_fast((x - highest) * log2_e);
}

template <int n, class T>
__global__ void __launch_bounds__(threads)
    partial_rows(float* stats, const T* logits, const int32_t* targets, int64_t first_token,
                 int64_t N, int64_t V) {
    const int64_t row = blockIdx.x, packs = V / n;
    logits += row * V;
    float highest = -INFINITY, sum = 0;
    for (int64_t first = threadIdx.x; first < packs; first += unroll * threads) {
        Pack<T, n> values[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            if (const int64_t p = first + u * threads; p < packs)
                values[u] = load<n>(logits + p * n);
        float larger = highest;
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            if (first + u * threads < packs)
#pragma unroll
                for (int j = 0; j < n; ++j) larger = fmaxf(larger, to_float(values[u].x[j]));
        sum *= exp_below(highest, larger);
        highest = larger;
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            if (first + u * threads < packs)
#pragma unroll
                for (int j = 0; j < n; ++j) sum += exp_below(to_float(values[u].x[j]), highest);
    }
    const float row_max = block_max<threads>(highest);
    sum = block_sum<threads>(sum * exp_below(highest, row_max));
    if (threadIdx.x > 0) return;
    const int32_t target = targets[row];
    const int64_t at = target - first_token;
    stats[row] = row_max;
    stats[N + row] = sum;
    stats[2 * N + row] =
        target != ignored_target && at >= 0 && at < V ? to_float(logits[at]) : 0.0f;
}

template <int n, class T>
__global__ void __launch_bounds__(threads)
    combine_rows(float* losses, T* logits, const float* stats, const int32_t* targets,
                 int64_t first_token, float dscale, int shards, int64_t N, int64_t V) {
    const int64_t row = blockIdx.x;
    const int32_t target = targets[row];
    const bool counted = target != ignored_target;
    const int64_t at = target - first_token;
    logits += row * V;
    stats += row;
    float highest = -INFINITY, sum = 0, at_target = 0;
    for (int r = 0; r < shards; ++r) highest = fmaxf(highest, stats[r * 3 * N]);
    for (int r = 0; r < shards; ++r) {  // every thread reads these few numbers itself, from cache
        sum += stats[(r * 3 + 1) * N] * exp_below(stats[r * 3 * N], highest);
        at_target += stats[(r * 3 + 2) * N];
    }
    if (threadIdx.x == 0) losses[row] = counted ? logf(sum) - (at_target - highest) : 0.0f;
    if (dscale == 0) return;
    const float factor = counted ? dscale / sum : 0.0f;
    for (int64_t p = threadIdx.x; p < V / n; p += threads) {
        Pack<T, n> values = load<n>(logits + p * n);
#pragma unroll
        for (int j = 0; j < n; ++j) {
            const float minus = counted && p * n + j == at ? dscale : 0.0f;
            values.x[j] = from_float<T>(
                counted ? exp_below(to_float(values.x[j]), highest) * factor - minus : 0.0f);
        }
        store_once(logits + p * n, values);
    }
}

}  // namespace

void cross_entropy_partial(Tensor stats, const Tensor& logits, const Tensor& targets,
                           int64_t first_token) {
    const SplitSizes sizes = partial_sizes(stats, logits, targets);
    const int64_t N = sizes.N, V = sizes.V;
    OpSpan span("cross_entropy_partial", 3.0 * double(N * V), bytes_of(logits, stats, targets));
    with_type(logits.dtype(), [&]<class T>(T) {
        const auto start = [&](auto kernel) {
            LAUNCH(kernel, unsigned(N), threads, 0)
            (stats.as<float>(), data<T>(logits), targets.as<int32_t>(), first_token, N, V);
        };
        packs_fit<T>(V, {logits.data()}) ? start(partial_rows<pack_size<T>, T>)
                                         : start(partial_rows<1, T>);
    });
}

void cross_entropy_combine(Tensor losses, Tensor logits, const Tensor& all_stats,
                           const Tensor& targets, int64_t first_token, float dscale) {
    const SplitSizes sizes = combine_sizes(losses, logits, all_stats, targets);
    const int64_t N = sizes.N, V = sizes.V;
    OpSpan span("cross_entropy_combine", dscale != 0 ? 3.0 * double(N * V) : 0,
                bytes_of(losses, all_stats, targets) + (dscale != 0 ? 2 * bytes_of(logits) : 0));
    with_type(logits.dtype(), [&]<class T>(T) {
        const auto start = [&](auto kernel) {
            LAUNCH(kernel, unsigned(N), threads, 0)
            (losses.as<float>(), data<T>(logits), all_stats.as<float>(), targets.as<int32_t>(),
             first_token, dscale, int(sizes.shards), N, V);
        };
        packs_fit<T>(V, {logits.data()}) ? start(combine_rows<pack_size<T>, T>)
                                         : start(combine_rows<1, T>);
    });
}

}  // namespace ultrascale::ops
