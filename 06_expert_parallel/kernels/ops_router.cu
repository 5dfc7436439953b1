// The router of a mixture of experts: a warp for each token. It holds the token's scores in shared
// memory and finds the k best one after the other: each lane searches every 32nd expert, then all
// lanes search together.
//
// Forward reads 4 bytes and writes 4 bytes for each logit; backward reads 4 (with the gradient of
// the scores 8) and writes 4. Next to the experts' products both are small.
#include "cuda/ops_common.cuh"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 128, warps = threads / 32;

struct Routing {
    int N, E, k, groups, top_groups;
    bool sigmoid, renormalise;
    float scaling, masked;

    Routing(const RouterSizes& n, const RouterSettings& s)
        : N(int(n.N)),
          E(int(n.E)),
          k(int(n.k)),
          groups(int(s.groups)),
          top_groups(int(s.top_groups)),
          sigmoid(s.score == RouterScore::sigmoid),
          renormalise(s.renormalise),
          scaling(float(s.scaling)),
          masked(s.masked) {}
    // A warp's numbers in shared memory: scores and choices (E), scores of groups, experts (k).
    __host__ __device__ int shared_numbers() const { return 2 * E + groups + k; }
};

// The index of the largest of x (n) that is not in `taken`: bit i is x[lane + 32 i]. Of equal ones
// it is the lowest; all lanes get the same.
__device__ int best(const float* x, int n, uint32_t taken) {
    const int lane = int(threadIdx.x) % 32;
    float value = 0;
    int index = -1;
    for (int i = 0; lane + 32 * i < n; ++i) {
        const float candidate = x[lane + 32 * i];
        if ((taken >> i & 1) == 0 && (index < 0 || candidate > value))
            value = candidate, index = lane + 32 * i;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, offset);
        const int there = __shfl_xor_sync(0xffffffffu, index, offset);
        if (there >= 0 && (index < 0 || other > value || (other == value && there < index)))
            value = other, index = there;
    }
    return __shfl_sync(0xffffffffu, index, 0);  // with NaNs lanes might disagree
}

// Marks `index` as taken, in the lane that looks at it.
__device__ void take(uint32_t& taken, int index) {
    if (index % 32 == int(threadIdx.x) % 32) taken |= 1u << index / 32;
}

__device__ void scores_of(float* scores, const float* logits, const Routing& r) {
    const int lane = int(threadIdx.x) % 32;
    float highest = -INFINITY, sum = 0;
    for (int e = lane; e < r.E; e += 32) {
        const float x = logits[e];
        scores[e] = r.sigmoid ? 1.0f / (1.0f + expf(-x)) : x;
        highest = fmaxf(highest, x);
    }
    if (r.sigmoid) return;
    highest = warp_max(highest);
    for (int e = lane; e < r.E; e += 32) sum += scores[e] = expf(scores[e] - highest);
    sum = warp_sum(sum);
    for (int e = lane; e < r.E; e += 32) scores[e] /= sum;
}

// Replaces the choices of experts outside of the token's best groups.
__device__ void mask_groups(float* choice, float* group, const Routing& r) {
    const int lane = int(threadIdx.x) % 32, size = r.E / r.groups;
    for (int g = lane; g < r.groups; g += 32) {
        float first = choice[g * size], second = -INFINITY;
        for (int e = g * size + 1; e < (g + 1) * size; ++e) {
            const float x = choice[e];
            if (x > first)
                second = first, first = x;
            else
                second = fmaxf(second, x);
        }
        group[g] = size > 1 ? first + second : first;
    }
    __syncwarp();
    uint32_t chosen = 0;  // bit i: group lane + 32 i
    for (int i = 0; i < r.top_groups; ++i) take(chosen, best(group, r.groups, chosen));
    for (int g = lane; g < r.groups; g += 32)
        if ((chosen >> g / 32 & 1) == 0)
            for (int e = g * size; e < (g + 1) * size; ++e) choice[e] = r.masked;
    __syncwarp();
}

// The sum of the chosen scores, by which they are divided; 1 if they are not divided. Added in
// order.
template <class Index>
__device__ float divisor(const float* scores, const Index* experts, const Routing& r) {
    if (!r.renormalise) return 1;
    float sum = r.sigmoid ? 1e-20f : 0.0f;
    for (int j = 0; j < r.k; ++j) sum += scores[experts[j]];
    return sum;
}

__global__ void __launch_bounds__(threads)
    forward(int32_t* experts, float* weights, float* scores, const float* logits, const float* bias,
            const Routing r) {
    DYNAMIC_SHARED(float, shared);
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    const int64_t n = int64_t(blockIdx.x) * warps + warp;
    if (n >= r.N) return;
    float *const score = shared + warp * r.shared_numbers(), *const choice = score + r.E,
                 *const group = choice + r.E;
    int* const chosen = reinterpret_cast<int*>(group + r.groups);
    scores_of(score, logits + n * r.E, r);
    for (int e = lane; e < r.E; e += 32) {
        choice[e] = bias ? score[e] + bias[e] : score[e];
        scores[n * r.E + e] = score[e];
    }
    __syncwarp();
    if (r.groups > 1) mask_groups(choice, group, r);
    uint32_t taken = 0;
    for (int j = 0; j < r.k; ++j) {
        const int e = best(choice, r.E, taken);
        take(taken, e);
        if (lane == 0) chosen[j] = e;
    }
    __syncwarp();
    const float sum = divisor(score, chosen, r);
    for (int j = lane; j < r.k; j += 32) {
        experts[n * r.k + j] = chosen[j];
        weights[n * r.k + j] = score[chosen[j]] / sum * r.scaling;
    }
}

// The formulas are in cpu/ops_router.cpp.
__global__ void __launch_bounds__(threads)
    backward(float* dlogits, const float* dweights, const float* scores, const int32_t* experts,
             const float* dscores, const Routing r) {
    const int lane = int(threadIdx.x) % 32;
    const int64_t n = int64_t(blockIdx.x) * warps + int(threadIdx.x) / 32;
    if (n >= r.N) return;
    dlogits += n * r.E, scores += n * r.E, dweights += n * r.k, experts += n * r.k;
    const float S = divisor(scores, experts, r);
    float mean = 0, sum = 0;
    if (r.renormalise)
        for (int j = 0; j < r.k; ++j) mean += dweights[j] * scores[experts[j]] / S;
    for (int e = lane; e < r.E; e += 32) {
        float d = dscores ? dscores[n * r.E + e] : 0.0f;
        for (int j = 0; j < r.k; ++j)
            if (experts[j] == e) d += r.scaling * (dweights[j] - mean) / S;
        const float s = scores[e];
        dlogits[e] = r.sigmoid ? d * s * (1 - s) : d;
        sum += s * d;
    }
    if (r.sigmoid) return;
    sum = warp_sum(sum);
    for (int e = lane; e < r.E; e += 32) dlogits[e] = scores[e] * (dlogits[e] - sum);
}

unsigned blocks_for(int64_t tokens) { return unsigned(ceil_div(tokens, warps)); }

}  // namespace

void router_forward(Tensor experts, Tensor weights, Tensor scores, const Tensor& logits,
                    const Tensor& bias, const RouterSettings& s) {
    const RouterSizes n = router_forward_sizes(experts, weights, scores, logits, bias, s);
    OpSpan span("router_forward", 5.0 * double(n.N * n.E),
                bytes_of(experts, weights, scores, logits));
    const Routing r(n, s);
    LAUNCH(forward, blocks_for(n.N), threads, sizeof(float) * size_t(warps * r.shared_numbers()))
    (experts.as<int32_t>(), weights.as<float>(), scores.as<float>(), logits.as<float>(),
     bias ? bias.as<float>() : nullptr, r);
}

void router_backward(Tensor dlogits, const Tensor& dweights, const Tensor& scores,
                     const Tensor& experts, const RouterSettings& s, const Tensor& dscores) {
    const RouterSizes n = router_backward_sizes(dlogits, dweights, scores, experts, s, dscores);
    OpSpan span("router_backward", 5.0 * double(n.N * n.E),
                bytes_of(dlogits, dweights, scores, experts) + (dscores ? bytes_of(dscores) : 0));
    LAUNCH(backward, blocks_for(n.N), threads, 0)
    (dlogits.as<float>(), dweights.as<float>(), scores.as<float>(), experts.as<int32_t>(),
     dscores ? dscores.as<float>() : nullptr, Routing(n, s));
}

}  // namespace ultrascale::ops
