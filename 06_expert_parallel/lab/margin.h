// How close a router was to another choice, for --verify (one_device_choices.h).
#pragma once

#include "../2_route.h"

namespace ultrascale::expert_parallel {

// The margin of another choice. A router with these scores (E) must have seen some numbers in the
// other order to choose `experts`; the margin is how far apart these are, as a share of their size.
// It is 0 if the router would choose them anyway, and infinite if no order leads there (experts of
// too many groups). Below rounding, two correct programs may choose differently.
inline double margin_of(const std::vector<int>& experts, const std::vector<double>& scores,
                        std::span<const float> bias, const ops::RouterSettings& settings) {
    struct Number {
        double value, size;  // size: that of the summands
    };
    const auto lower = [](const Number& a, const Number& b) { return a.value < b.value; };
    const auto below = [](const Number& a, const Number& b) {
        return std::max(0.0, (b.value - a.value) / std::max(a.size, b.size));
    };
    const size_t G = size_t(settings.groups), each = scores.size() / G,
                 keep = size_t(settings.top_groups);
    std::vector<Number> group_scores;
    std::vector<Number> best_other(G, {-INFINITY, 1});  // of each group's other experts
    std::vector<bool> needed(G, false);                 // the groups of the chosen experts
    Number last{INFINITY, 1};                           // the lowest expert that was chosen
    for (size_t g = 0; g < G; ++g) {
        std::vector<Number> in;
        for (size_t e = g * each; e < (g + 1) * each; ++e) {
            const double b = bias.empty() ? 0 : double(bias[e]);
            in.push_back({scores[e] + b, scores[e] + std::abs(b)});
            const bool chosen = std::ranges::find(experts, int(e)) != experts.end();
            if (chosen)
                needed[g] = true, last = std::min(last, in.back(), lower);
            else
                best_other[g] = std::max(best_other[g], in.back(), lower);
        }
        std::ranges::sort(in, [&](const Number& a, const Number& b) { return lower(b, a); });
        if (each > 1) in[0] = {in[0].value + in[1].value, in[0].size + in[1].size};
        group_scores.push_back(in[0]);
    }
    std::vector<Number> ordered = group_scores;
    std::ranges::sort(ordered, [&](const Number& a, const Number& b) { return lower(b, a); });
    // The margin that keeps a group, and the margin that hides it.
    std::vector<double> kept(G), hidden(G, INFINITY);
    for (size_t g = 0; g < G; ++g) {
        kept[g] = std::max(below(group_scores[g], ordered[keep - 1]), below(last, best_other[g]));
        if (!needed[g] && keep < G) hidden[g] = below(ordered[keep], group_scores[g]);
    }
    std::vector<double> margins = kept;
    margins.insert(margins.end(), hidden.begin(), hidden.end());
    std::ranges::sort(margins);
    for (const double margin : margins) {  // the smallest that keeps as many as it should
        size_t must = 0, may = 0, neither = 0;
        for (size_t g = 0; g < G; ++g) {
            must += hidden[g] > margin, may += kept[g] <= margin;
            neither += hidden[g] > margin && kept[g] > margin;
        }
        if (neither == 0 && must <= keep && keep <= may) return margin;
    }
    return INFINITY;
}

}  // namespace ultrascale::expert_parallel
