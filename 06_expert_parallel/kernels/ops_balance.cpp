// The balance of a mixture of experts: small tensors, so plain loops.
#include "core/ops.h"
#include "cpu/ops_common.h"
#include "ops_balance_checks.h"

namespace ultrascale::ops {

namespace {

// 1 / the sum of a token's scores, or 1.
double share(const float* scores, int64_t E, bool normalise) {
    if (!normalise) return 1;
    double sum = 1e-20;
    for (int64_t e = 0; e < E; ++e) sum += double(scores[e]);
    return 1 / sum;
}

double log_sum_exp(const float* x, int64_t n) {
    const double highest = double(*std::max_element(x, x + n));
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += std::exp(double(x[i]) - highest);
    return highest + std::log(sum);
}

// The logits of token n, one expert after the other; x and W may have 16 bits.
template <class T>
void logits_of_rows(float* logits, const T* x, const T* w, int64_t N, int64_t E, int64_t h) {
#pragma omp parallel for if (N * E * h > 4 * parallel_threshold)
    for (int64_t n = 0; n < N; ++n)
        for (int64_t e = 0; e < E; ++e) {
            float sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < h; ++i) sum += float(x[n * h + i]) * float(w[e * h + i]);
            logits[n * E + e] = sum;
        }
}

}  // namespace

void router_logits(Tensor logits, const Tensor& x, const Tensor& weight) {
    const int64_t N = x.rows(), E = weight.rows(), h = x.cols();
    check(weight.cols() == h && logits.numel() == N * E && weight.dtype() == x.dtype(),
          "router_logits: logits (N, E), x (N, h), weight (E, h)");
    const OpSpan span("router_logits", 2.0 * double(N) * double(E) * double(h),
                      bytes_of(logits, x, weight));
    with_type(x.dtype(), [&]<class T>(T) {
        logits_of_rows(logits.as<float>(), x.as<T>(), weight.as<T>(), N, E, h);
    });
}

void balance_statistics(Tensor counts, Tensor sums, const Tensor& experts, const Tensor& scores,
                        bool normalise) {
    const auto [N, E, S] = statistics_sizes(counts, sums, experts, scores);
    const int64_t k = experts.cols();
    const OpSpan span("balance_statistics", 0, bytes_of(experts, scores));
    const float* const s = scores.as<float>();
    const int32_t* const chosen = experts.as<int32_t>();
    for (int64_t part = 0; part < S; ++part) {
        std::vector<double> sum(size_t(E), 0.0), count(size_t(E), 0.0);
        for (int64_t n = part * (N / S); n < (part + 1) * (N / S); ++n) {
            const double token_share = share(s + n * E, E, normalise);
            for (int64_t e = 0; e < E; ++e) sum[size_t(e)] += double(s[n * E + e]) * token_share;
            for (int64_t j = 0; j < k; ++j)
                if (chosen[n * k + j] >= 0) ++count[size_t(chosen[n * k + j])];
        }
        std::copy(count.begin(), count.end(), counts.as<float>() + part * E);
        std::copy(sum.begin(), sum.end(), sums.as<float>() + part * E);
    }
}

void balance_gradient(Tensor dscores, const Tensor& factors, const Tensor& scores, bool normalise) {
    const auto [N, E, S] = gradient_sizes(dscores, factors, scores);
    const OpSpan span("balance_gradient", 0, bytes_of(dscores, scores));
    const float *const s = scores.as<float>(), *const f = factors.as<float>();
    float* const d = dscores.as<float>();
    for (int64_t n = 0; n < N; ++n) {
        const float *const token_scores = s + n * E, *const segment_factors = f + n / (N / S) * E;
        const double token_share = share(token_scores, E, normalise);
        double along = 0;  // of a quotient's gradient, the part along p
        for (int64_t e = 0; normalise && e < E; ++e)
            along += double(segment_factors[e]) * double(token_scores[e]) * token_share;
        for (int64_t e = 0; e < E; ++e)
            d[n * E + e] = float((double(segment_factors[e]) - along) * token_share);
    }
}

void z_loss(Tensor total, const Tensor& logits) {
    const OpSpan span("z_loss", 0, bytes_of(logits));
    double sum = 0;
    for (int64_t n = 0; n < logits.rows(); ++n)
        sum += std::pow(log_sum_exp(logits.as<float>() + n * logits.cols(), logits.cols()), 2);
    *total.as<double>() += sum;
}

void z_loss_backward(Tensor dlogits, const Tensor& logits, float factor) {
    const int64_t N = logits.rows(), E = logits.cols();
    check_z_loss(dlogits, logits);
    const OpSpan span("z_loss_backward", 0, bytes_of(dlogits, dlogits, logits));
    for (int64_t n = 0; n < N; ++n) {
        const float* const x = logits.as<float>() + n * E;
        const double lse = log_sum_exp(x, E);
        for (int64_t e = 0; e < E; ++e)
            dlogits.as<float>()[n * E + e] +=
                float(2 * double(factor) * lse * std::exp(double(x[e]) - lse));
    }
}

void capacity_slots(Tensor row_map, const Tensor& experts, const Tensor& sorted_order,
                    const Tensor& sorted_row_map, const Tensor& counts, int64_t capacity,
                    const Tensor& weights) {
    const int64_t R = choices_of_slots(row_map, experts, sorted_order, sorted_row_map, weights);
    const OpSpan span("capacity_slots", 0, bytes_of(row_map, experts, sorted_order));
    std::fill_n(row_map.as<int32_t>(), R, -1);
    const int32_t* const sorted = sorted_order.as<int32_t>();
    int64_t first = 0;
    for (int64_t e = 0; e < counts.numel(); ++e) {
        const int64_t n = counts.as<int32_t>()[e];
        std::vector<int32_t> rows(sorted + first, sorted + first + n);
        if (weights)
            std::ranges::stable_sort(rows, [&](int32_t a, int32_t b) {
                return weights.as<float>()[a] > weights.as<float>()[b];
            });
        for (int64_t i = 0; i < std::min(n, capacity); ++i)
            row_map.as<int32_t>()[rows[size_t(i)]] = int32_t(e * capacity + i);
        first += n;
    }
}

}  // namespace ultrascale::ops
