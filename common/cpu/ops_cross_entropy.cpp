// Softmax cross-entropy: loss = log(sum exp(logits - max)) + max - logits[target].
#include "ops_common.h"

namespace ultrascale::ops {

namespace {

// Returns the loss of one row of V logits, and overwrites them with their gradient if dscale is not
// 0.
template <class T>
float cross_entropy_row(T* logits, int64_t V, int32_t target, float dscale) {
    if (target == ignored_target) {
        if (dscale != 0) std::fill(logits, logits + V, T(0.0f));
        return 0;
    }
    const auto [highest, sum] = softmax_sums(logits, V);
    const float at_target = float(logits[target]) - highest;
    if (dscale != 0) {
        const float factor = dscale / sum;
#pragma omp simd
        for (int64_t i = 0; i < V; ++i)
            store(logits[i], exp_fast(float(logits[i]) - highest) * factor);
        store(logits[target], (exp_fast(at_target) / sum - 1.0f) * dscale);  // rounded once
    }
    return std::log(sum) - at_target;
}

}  // namespace

void cross_entropy(Tensor losses, Tensor logits, const Tensor& targets, float dscale) {
    const int64_t N = targets.numel(), V = logits.cols();
    check(logits.numel() == N * V && losses.numel() == N,
          "cross_entropy: logits (N, V), losses and targets (N)");
    const int32_t* target = targets.as<int32_t>();
    for (int64_t n = 0; n < N; ++n)
        check(target[n] == ignored_target || (target[n] >= 0 && target[n] < V),
              "cross_entropy: a target outside the vocabulary");
    OpSpan span("cross_entropy", 4.0 * double(N * V),
                bytes_of(logits, losses, targets) + (dscale != 0 ? bytes_of(logits) : 0));
    float* loss = losses.as<float>();
    with_type(logits.dtype(), [&]<class T>(T) {
        T* rows = logits.as<T>();
#pragma omp parallel for if (N * V > parallel_threshold / 4)
        for (int64_t n = 0; n < N; ++n)
            loss[n] = cross_entropy_row(rows + n * V, V, target[n], dscale);
    });
}

}  // namespace ultrascale::ops
