// A router's choice, token by token on the host. It is the plain form of ops::router_forward, for
// reading, for --verify's plain training (lab/one_device_experts.h) and for the demo.
//
//     logits (E) --softmax or sigmoid--> scores --+ bias--> choice
//     groups: keep the best ones by the sum of their two best choices, hide the others
//     experts = the k best choices; weights = their scores (without the bias) / their sum * scaling
//
// Shazeer et al. 2017; the bias and the groups: DeepSeek-V3, arXiv 2412.19437, section 2.1.2.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/ops_experts.h"

namespace ultrascale::expert_parallel {

// The route of one token. Everything has E or k elements.
struct Route {
    std::vector<double> scores, choice;  // (E); choice: scores + bias, -infinity if hidden
    std::vector<int> experts;            // (k), best first
    std::vector<double> weights;         // (k)
};

inline std::vector<double> scores_of(std::span<const float> logits, ops::RouterScore kind) {
    std::vector<double> scores(logits.begin(), logits.end());
    if (kind == ops::RouterScore::sigmoid) {
        for (double& s : scores) s = 1 / (1 + std::exp(-s));
        return scores;
    }
    const double largest = *std::ranges::max_element(scores);
    double sum = 0;
    for (double& s : scores) sum += s = std::exp(s - largest);
    for (double& s : scores) s /= sum;
    return scores;
}

// The indices of `values`, the largest value first; of equal values the lower index first.
inline std::vector<int> best_first(const std::vector<double>& values) {
    std::vector<int> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, [&](int a, int b) { return values[a] > values[b]; });
    return order;
}

// Hides the groups that are not among the best ones.
inline void keep_best_groups(std::vector<double>& choice, const ops::RouterSettings& settings) {
    // exercise 06.2 begin: a group's score is the sum of its two best; hide the others
    const size_t each = choice.size() / size_t(settings.groups);
    std::vector<double> group_scores;
    for (size_t first = 0; first < choice.size(); first += each) {
        std::vector<double> in(choice.begin() + long(first), choice.begin() + long(first + each));
        std::ranges::sort(in, std::greater<>());
        group_scores.push_back(in[0] + (each > 1 ? in[1] : 0));
    }
    const std::vector<int> order = best_first(group_scores);
    for (size_t g = size_t(settings.top_groups); g < order.size(); ++g)
        std::fill_n(choice.begin() + long(size_t(order[g]) * each), each, double(settings.masked));
    // exercise 06.2 end
}

inline void set_weights(Route& route, const ops::RouterSettings& settings) {
    double sum = settings.score == ops::RouterScore::sigmoid ? 1e-20 : 0;
    for (int e : route.experts) sum += route.scores[size_t(e)];
    route.weights.clear();
    for (int e : route.experts)
        route.weights.push_back(route.scores[size_t(e)] * settings.scaling /
                                (settings.renormalise ? sum : 1));
}

// The route of a token with these logits (E). bias (E) may be empty.
inline Route route_token(std::span<const float> logits, std::span<const float> bias,
                         const ops::RouterSettings& settings) {
    // exercise 06.1 begin: choose by scores + bias; the weights come from the scores alone
    Route route{.scores = scores_of(logits, settings.score)};
    route.choice = route.scores;
    for (size_t e = 0; e < bias.size(); ++e) route.choice[e] += double(bias[e]);
    if (settings.top_groups < settings.groups) keep_best_groups(route.choice, settings);
    const std::vector<int> order = best_first(route.choice);
    const size_t k = size_t(settings.top_k);
    route.experts.assign(order.begin(), order.begin() + long(k));
    set_weights(route, settings);
    // exercise 06.1 end
    return route;
}

// True for a single choice whose weight is divided by itself: it is 1 and has no gradient. (A
// computed gradient would be nothing but rounding, and AdamW would make full steps along it.)
inline bool has_constant_weights(const ops::RouterSettings& settings) {
    return settings.renormalise && settings.top_k == 1;
}

// The gradient with respect to the scores, from that with respect to the weights.
inline std::vector<double> score_gradient(const Route& route, std::span<const double> dweights,
                                          const ops::RouterSettings& settings) {
    // exercise 06.3 begin: the gradient of s_j / sum of s, or of s_j alone
    std::vector<double> dscores(route.scores.size());
    if (has_constant_weights(settings)) return dscores;
    double sum = settings.score == ops::RouterScore::sigmoid ? 1e-20 : 0, along = 0;
    for (size_t j = 0; j < route.experts.size(); ++j) {
        sum += route.scores[size_t(route.experts[j])];
        along += dweights[j] * route.scores[size_t(route.experts[j])];
    }
    for (size_t j = 0; j < route.experts.size(); ++j)
        dscores[size_t(route.experts[j])] =
            settings.scaling *
            (settings.renormalise ? dweights[j] / sum - along / (sum * sum) : dweights[j]);
    // exercise 06.3 end
    return dscores;
}

// The gradient with respect to the logits, from that with respect to the scores.
inline std::vector<double> logit_gradient(const std::vector<double>& scores,
                                          const std::vector<double>& dscores,
                                          ops::RouterScore kind) {
    std::vector<double> dlogits(scores.size());
    double along = 0;
    for (size_t e = 0; e < scores.size(); ++e) along += dscores[e] * scores[e];
    for (size_t e = 0; e < scores.size(); ++e)
        dlogits[e] = kind == ops::RouterScore::softmax ? scores[e] * (dscores[e] - along)
                                                       : dscores[e] * scores[e] * (1 - scores[e]);
    return dlogits;
}

// Token n's j-th expert in a choice that no router made, for measurements. The share `skew` of all
// tokens, evenly spread, choose expert 0 first and the others in turn. The other tokens choose all
// experts in turn, in steps that change from round to round, so that a token's experts are on about
// as many ranks as if a router had chosen them. (Neighbours would often be on one rank.)
inline int forced_expert(int64_t n, int64_t j, int64_t experts, int64_t k, double skew) {
    const auto skewed = int64_t(std::floor(double(n) * skew));  // among the tokens before this one
    if (int64_t(std::floor(double(n + 1) * skew)) == skewed) {
        const int64_t in_turn = n - skewed;
        int64_t step = 1 + in_turn / experts * (experts * 5 / 8 + 1) % experts;
        while (std::gcd(step, experts) > 1) --step;  // otherwise some experts would never be chosen
        return int((in_turn * k + j) * step % experts);
    }
    return j == 0 ? 0 : int(1 + (skewed * (k - 1) + j - 1) % (experts - 1));
}

}  // namespace ultrascale::expert_parallel
