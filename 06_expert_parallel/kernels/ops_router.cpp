// The router of a mixture of experts: scores, the choice of k experts for each token, weights.
#include "cpu/ops_common.h"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

namespace {

void scores_of(float* scores, const float* logits, int64_t E, RouterScore kind) {
    if (kind == RouterScore::sigmoid) {
#pragma omp simd
        for (int64_t e = 0; e < E; ++e) scores[e] = 1.0f / (1.0f + exp_fast(-logits[e]));
        return;
    }
    const SoftmaxSums sums = softmax_sums(logits, E);
#pragma omp simd
    for (int64_t e = 0; e < E; ++e) scores[e] = exp_fast(logits[e] - sums.highest) / sums.sum;
}

// The first index of the largest of x[begin .. end) that is not taken; of equal ones the lowest. A
// NaN is never larger, so without any other number the result is the first free index.
int64_t best(const float* x, const bool* taken, int64_t begin, int64_t end) {
    int64_t found = -1;
    for (int64_t i = begin; i < end; ++i)
        if (!taken[i] && (found < 0 || x[i] > x[found])) found = i;
    return found;
}

// Replaces the scores of experts outside of the token's best groups.
void mask_groups(float* choice, int64_t E, const RouterSettings& s) {
    const int64_t size = E / s.groups;
    float score[most_experts];
    bool taken[most_experts] = {}, chosen[most_experts] = {};
    for (int64_t g = 0; g < s.groups; ++g) {
        const int64_t begin = g * size, end = begin + size, first = best(choice, taken, begin, end);
        taken[first] = true;
        score[g] = choice[first] + (size > 1 ? choice[best(choice, taken, begin, end)] : 0);
    }
    for (int64_t i = 0; i < s.top_groups; ++i) chosen[best(score, chosen, 0, s.groups)] = true;
    for (int64_t e = 0; e < E; ++e)
        if (!chosen[e / size]) choice[e] = s.masked;
}

// The sum of a token's chosen scores, by which they are divided; 1 if they are not divided.
float divisor(const float* scores, const int32_t* experts, const RouterSettings& s) {
    if (!s.renormalise) return 1;
    float sum = s.score == RouterScore::sigmoid ? 1e-20f : 0;
    for (int64_t j = 0; j < s.top_k; ++j) sum += scores[experts[j]];
    return sum;
}

void choose(int32_t* experts, float* weights, const float* scores, const float* bias, int64_t E,
            const RouterSettings& s) {
    float choice[most_experts];
    bool taken[most_experts] = {};
    for (int64_t e = 0; e < E; ++e) choice[e] = scores[e] + (bias ? bias[e] : 0);
    if (s.groups > 1) mask_groups(choice, E, s);
    for (int64_t j = 0; j < s.top_k; ++j) {
        const int64_t e = best(choice, taken, 0, E);
        taken[e] = true, experts[j] = int32_t(e);
    }
    const float sum = divisor(scores, experts, s);
    for (int64_t j = 0; j < s.top_k; ++j) weights[j] = scores[experts[j]] / sum * float(s.scaling);
}

// With S the divisor: w_j = c s_j / S, so ds_j = c (dw_j - sum_i dw_i s_i / S) / S. Then follows
// softmax, dlogit = s (ds - sum of s ds), or sigmoid, dlogit = s (1 - s) ds.
void backward_row(float* dlogits, const float* dweights, const float* scores,
                  const int32_t* experts, const float* dscores, int64_t E,
                  const RouterSettings& s) {
    for (int64_t e = 0; e < E; ++e) dlogits[e] = dscores ? dscores[e] : 0;
    const float S = divisor(scores, experts, s), c = float(s.scaling);
    float mean = 0;
    if (s.renormalise)
        for (int64_t j = 0; j < s.top_k; ++j) mean += dweights[j] * scores[experts[j]] / S;
    for (int64_t j = 0; j < s.top_k; ++j) dlogits[experts[j]] += c * (dweights[j] - mean) / S;
    if (s.score == RouterScore::sigmoid) {
        for (int64_t e = 0; e < E; ++e) dlogits[e] *= scores[e] * (1 - scores[e]);
        return;
    }
    float sum = 0;
    for (int64_t e = 0; e < E; ++e) sum += scores[e] * dlogits[e];
    for (int64_t e = 0; e < E; ++e) dlogits[e] = scores[e] * (dlogits[e] - sum);
}

}  // namespace

void router_forward(Tensor experts, Tensor weights, Tensor scores, const Tensor& logits,
                    const Tensor& bias, const RouterSettings& s) {
    const auto [N, E, k] = router_forward_sizes(experts, weights, scores, logits, bias, s);
    OpSpan span("router_forward", 5.0 * double(N * E), bytes_of(experts, weights, scores, logits));
    const float *x = logits.as<float>(), *b = bias ? bias.as<float>() : nullptr;
    float *p = scores.as<float>(), *w = weights.as<float>();
    int32_t* chosen = experts.as<int32_t>();
#pragma omp parallel for if (N * E > parallel_threshold / 8)
    for (int64_t n = 0; n < N; ++n) {
        scores_of(p + n * E, x + n * E, E, s.score);
        choose(chosen + n * k, w + n * k, p + n * E, b, E, s);
    }
}

void router_backward(Tensor dlogits, const Tensor& dweights, const Tensor& scores,
                     const Tensor& experts, const RouterSettings& s, const Tensor& dscores) {
    const auto [N, E, k] = router_backward_sizes(dlogits, dweights, scores, experts, s, dscores);
    OpSpan span("router_backward", 5.0 * double(N * E),
                bytes_of(dlogits, dweights, scores, experts) + (dscores ? bytes_of(dscores) : 0));
    const float *dw = dweights.as<float>(), *p = scores.as<float>(),
                *ds = dscores ? dscores.as<float>() : nullptr;
    float* dx = dlogits.as<float>();
    const int32_t* chosen = experts.as<int32_t>();
#pragma omp parallel for if (N * E > parallel_threshold)
    for (int64_t n = 0; n < N; ++n)
        backward_row(dx + n * E, dw + n * k, p + n * E, chosen + n * k, ds ? ds + n * E : nullptr,
                     E, s);
}

}  // namespace ultrascale::ops
