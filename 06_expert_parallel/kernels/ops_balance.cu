// The balance of a mixture of experts. Tensors are small, (N, E) at most: there is a warp, or a
// thread, for each row or sum, and no two threads add to one number.
#include "cuda/ops_common.cuh"
#include "ops_balance_checks.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256, at_once = 32;  // threads of a block; experts that it sums
constexpr int tokens_of_part = 128;         // the fewest tokens that it sums, if there are enough

// 1 / the sum of a token's scores, or 1.
__device__ float share(const float* scores, int E, bool normalise) {
    if (!normalise) return 1;
    float sum = 1e-20f;
    for (int e = 0; e < E; ++e) sum += scores[e];
    return 1 / sum;
}

// inverse (N) = share of each token.
__global__ void shares(float* inverse, const float* scores, int64_t N, int E, bool normalise) {
    const int64_t n = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (n < N) inverse[n] = share(scores + n * E, E, normalise);
}

// A block sums at_once experts of a part of a segment: thread (x, y) takes expert x and every 8th
// token, and the 8 sums are added in order. counts and sums are (S, parts, E).
__global__ void statistics(float* counts, float* sums, const int32_t* experts, const float* scores,
                           const float* inverse, int64_t tokens, int E, int k) {
    constexpr int parts = threads / at_once;
    __shared__ float part_sum[parts][at_once], part_count[parts][at_once];
    const int x = int(threadIdx.x) % at_once, y = int(threadIdx.x) / at_once;
    const int e = int(blockIdx.x) * at_once + x;
    const int64_t segment = int64_t(blockIdx.y) * tokens,
                  in_part = (tokens + gridDim.z - 1) / gridDim.z,
                  first = segment + int64_t(blockIdx.z) * in_part;
    const int64_t end = min(first + in_part, segment + tokens);
    float sum = 0, count = 0;
    for (int64_t n = first + y; n < end; n += parts) {
        if (e < E) sum += scores[n * E + e] * inverse[n];
        for (int j = 0; j < k; ++j) count += experts[n * k + j] == e ? 1.0f : 0.0f;
    }
    part_sum[y][x] = sum, part_count[y][x] = count;
    __syncthreads();
    if (y != 0 || e >= E) return;
    for (int part = 1; part < parts; ++part) sum += part_sum[part][x], count += part_count[part][x];
    const int64_t to = (int64_t(blockIdx.y) * gridDim.z + blockIdx.z) * E + e;
    counts[to] = count;
    sums[to] = sum;
}

// out (S, E) = the sum of in (S, parts, E) over the parts, in order.
__global__ void sum_parts(float* out, const float* in, int64_t parts, int64_t E, int64_t count) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= count) return;
    const float* const first = in + i / E * parts * E + i % E;
    float sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += first[part * E];
    out[i] = sum;
}

__global__ void gradient(float* dscores, const float* factors, const float* scores, int64_t N,
                         int64_t tokens, int E, bool normalise) {
    const int64_t n = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (n >= N) return;
    const float *token_scores = scores + n * E, *segment_factors = factors + n / tokens * E;
    const float token_share = share(token_scores, E, normalise);
    float along = 0;  // of a quotient's gradient, the part along p
    if (normalise)
        for (int e = 0; e < E; ++e) along += segment_factors[e] * token_scores[e] * token_share;
    for (int e = 0; e < E; ++e) dscores[n * E + e] = (segment_factors[e] - along) * token_share;
}

__device__ float log_sum_exp(const float* x, int n) {
    float highest = -INFINITY, sum = 0;
    for (int i = 0; i < n; ++i) highest = fmaxf(highest, x[i]);
    for (int i = 0; i < n; ++i) sum += expf(x[i] - highest);
    return highest + logf(sum);
}

// One block, so that the sum has one order: each thread adds its tokens, then the threads add in
// order.
__global__ void z_sum(double* total, const float* logits, int64_t N, int E) {
    __shared__ double part[threads];
    double sum = 0;
    for (int64_t n = threadIdx.x; n < N; n += threads) {
        const float lse = log_sum_exp(logits + n * E, E);
        sum += double(lse) * double(lse);
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (int t = 1; t < threads; ++t) sum += part[t];
    *total += sum;
}

__global__ void z_gradient(float* dlogits, const float* logits, int64_t N, int E, float factor) {
    const int64_t n = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (n >= N) return;
    const float* const x = logits + n * E;
    const float lse = log_sum_exp(x, E);
    for (int e = 0; e < E; ++e) dlogits[n * E + e] += 2 * factor * lse * expf(x[e] - lse);
}

// A thread for each choice finds its expert's first row and, with weights, how many rows of the
// expert come before it.
__global__ void slots(int32_t* row_map, const int32_t* experts, const int32_t* sorted_order,
                      const int32_t* sorted_row_map, const int32_t* counts, const float* weights,
                      int64_t R, int64_t C) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i >= R) return;
    const int e = experts[i];
    if (e < 0) {
        row_map[i] = -1;
        return;
    }
    int64_t first = 0;
    for (int before = 0; before < e; ++before) first += counts[before];
    int64_t slot = sorted_row_map[i] - first;
    if (weights) {
        const float own = weights[i];
        const int64_t here = sorted_row_map[i];
        slot = 0;
        for (int64_t r = first; r < first + counts[e]; ++r) {
            const float other = weights[sorted_order[r]];
            slot += other > own || (other == own && r < here);
        }
    }
    row_map[i] = slot < C ? int32_t(int64_t(e) * C + slot) : -1;
}

unsigned blocks(int64_t n) { return unsigned(ceil_div(n, threads)); }

}  // namespace

void router_logits(Tensor logits, const Tensor& x, const Tensor& weight) {
    matmul(logits, x, Transpose::no, weight, Transpose::yes);
}

void balance_statistics(Tensor counts, Tensor sums, const Tensor& experts, const Tensor& scores,
                        bool normalise) {
    const auto [N, E, S] = statistics_sizes(counts, sums, experts, scores);
    const int64_t k = experts.cols();
    const OpSpan span("balance_statistics", 0, bytes_of(experts, scores));
    const Tensor inverse = Tensor::empty({N}, DType::fp32, Memory::workspace);
    LAUNCH(shares, blocks(N), threads, 0)
    (data<float>(inverse), data<const float>(scores), N, int(E), normalise);
    const int64_t parts = std::clamp<int64_t>(N / S / tokens_of_part, 1, 256);
    const Tensor part_counts = Tensor::empty({S, parts, E}, DType::fp32, Memory::workspace),
                 part_sums = Tensor::empty({S, parts, E}, DType::fp32, Memory::workspace);
    const dim3 grid(unsigned(ceil_div(E, at_once)), unsigned(S), unsigned(parts));
    LAUNCH(statistics, grid, threads, 0)
    (data<float>(part_counts), data<float>(part_sums), data<const int32_t>(experts),
     data<const float>(scores), data<const float>(inverse), N / S, int(E), int(k));
    for (const auto& [out, partial] : {std::pair{counts, part_counts}, {sums, part_sums}})
        LAUNCH(sum_parts, blocks(S * E), threads, 0)
    (data<float>(out), data<const float>(partial), parts, E, S * E);
}

void balance_gradient(Tensor dscores, const Tensor& factors, const Tensor& scores, bool normalise) {
    const auto [N, E, S] = gradient_sizes(dscores, factors, scores);
    const OpSpan span("balance_gradient", 0, bytes_of(dscores, scores));
    LAUNCH(gradient, blocks(N), threads, 0)
    (data<float>(dscores), data<const float>(factors), data<const float>(scores), N, N / S, int(E),
     normalise);
}

void z_loss(Tensor total, const Tensor& logits) {
    const OpSpan span("z_loss", 0, bytes_of(logits));
    LAUNCH(z_sum, 1, threads, 0)
    (total.as<double>(), data<const float>(logits), logits.rows(), int(logits.cols()));
}

void z_loss_backward(Tensor dlogits, const Tensor& logits, float factor) {
    check_z_loss(dlogits, logits);
    const OpSpan span("z_loss_backward", 0, bytes_of(dlogits, dlogits, logits));
    LAUNCH(z_gradient, blocks(logits.rows()), threads, 0)
    (data<float>(dlogits), data<const float>(logits), logits.rows(), int(logits.cols()), factor);
}

void capacity_slots(Tensor row_map, const Tensor& experts, const Tensor& sorted_order,
                    const Tensor& sorted_row_map, const Tensor& counts, int64_t capacity,
                    const Tensor& weights) {
    const int64_t R = choices_of_slots(row_map, experts, sorted_order, sorted_row_map, weights);
    const OpSpan span("capacity_slots", 0, bytes_of(row_map, experts, sorted_order));
    LAUNCH(slots, blocks(R), threads, 0)
    (data<int32_t>(row_map), data<const int32_t>(experts), data<const int32_t>(sorted_order),
     data<const int32_t>(sorted_row_map), data<const int32_t>(counts),
     weights ? data<const float>(weights) : nullptr, R, capacity);
}

}  // namespace ultrascale::ops
