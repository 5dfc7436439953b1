// The choices of --verify's plain training, and how it follows a run's. A choice is a comparison:
// if two experts' scores differ by less than rounding, two correct programs may choose differently,
// and their results then differ by more than rounding. So if the run chose otherwise, the plain
// training follows it and notes the margin: how far apart the numbers were that must have been in
// the other order. Whether that is rounding is judged at the end (verify.h).
//
// An expert's choice of what to drop over its capacity is such a comparison, too (--drop score).
#pragma once

#include <array>
#include <map>
#include <vector>

#include "lab/verify/verify.h"
#include "margin.h"

namespace ultrascale::expert_parallel {

class OneDeviceChoices {
public:
    using Key = std::array<int64_t, 4>;  // step, from 0 on; layer; sample; token
    // A token's k experts in ascending order; ~e: expert e, which dropped it.
    using Experts = std::vector<int32_t>;
    std::map<Key, Experts> run_choices;  // as far as they are known

    // most_followed: the largest margin with which the run is followed.
    explicit OneDeviceChoices(double most_followed) : most_followed_(most_followed) {}
    void begin_training() { made_.clear(), flips_.clear(); }

    // Takes this route for a token, or the run's, with weights from this route's scores. Returns
    // the experts that dropped the token in the run.
    std::vector<int> follow(const Key& key, Route& route, std::span<const float> bias,
                            const ops::RouterSettings& settings) {
        Choices::Flips& step = flips_of(key[0]);
        ++step.choices;
        const auto known = run_choices.find(key);
        if (known == run_choices.end()) return {};
        std::vector<int> theirs, dropped;
        for (const int32_t e : known->second) {
            theirs.push_back(e < 0 ? ~e : e);
            if (e < 0) dropped.push_back(~e);
        }
        std::vector<int> mine = route.experts;
        std::ranges::sort(mine), std::ranges::sort(theirs);
        if (mine == theirs) return dropped;
        if (flip(key[0], 1, margin_of(theirs, route.scores, bias, settings))) {
            std::ranges::stable_sort(theirs, std::greater<>(), [&](int e) {
                return route.scores[size_t(e)] + (bias.empty() ? 0 : double(bias[size_t(e)]));
            });
            route.experts = theirs;
            set_weights(route, settings);
        }
        return dropped;
    }
    // Here an expert dropped the choices marked in `mine`, in the run those in `theirs`. Returns
    // the ones that count. weights: the compared numbers, or empty if a position decides, which
    // does not round.
    std::vector<char> follow_drops(int64_t step, std::vector<char> mine, std::vector<char> theirs,
                                   const std::vector<double>& weights) {
        const auto known = run_choices.lower_bound({step});
        if (known == run_choices.end() || known->first[0] != step) return mine;
        int64_t others = 0;
        double kept = INFINITY, dropped = 0;  // the run's smallest and largest weight
        for (size_t i = 0; i < mine.size(); ++i) {
            others += mine[i] != theirs[i];
            if (weights.empty()) continue;
            if (theirs[i])
                dropped = std::max(dropped, weights[i]);
            else
                kept = std::min(kept, weights[i]);
        }
        if (others == 0) return mine;
        const bool as_many = std::reduce(mine.begin(), mine.end()) ==
                             std::reduce(theirs.begin(), theirs.end()),
                   compared = as_many && !weights.empty();
        return flip(step, others, compared ? (dropped - kept) / dropped : INFINITY) ? theirs : mine;
    }
    // Records the choices that were finally made for a token; dropped (k).
    void made(const Key& key, const Route& route, const char* dropped) {
        Made& made = made_[key];
        for (size_t j = 0; j < route.experts.size(); ++j)
            made.experts.push_back(dropped[j] ? ~route.experts[j] : route.experts[j]);
        std::ranges::sort(made.experts);
        for (const int32_t e : made.experts)
            made.scores.push_back(float(route.scores[size_t(e < 0 ? ~e : e)]));
    }

    // Whether the run's choices differ from those made here.
    bool differ() const {
        return std::ranges::any_of(run_choices, [&](const auto& choice) {
            const auto here = made_.find(choice.first);
            return here == made_.end() || here->second.experts != choice.second;
        });
    }
    void keep() { kept_ = made_; }
    std::vector<Choices::Flips> flips() const {
        std::vector<Choices::Flips> flips = flips_;
        for (const auto& [key, kept] : kept_) {
            const Made& now = made_.at(key);
            if (now.experts != kept.experts) continue;
            double& drift = flips[size_t(key[0])].drift;
            for (size_t j = 0; j < now.scores.size(); ++j)
                drift = std::max(drift, std::abs(double(now.scores[j] / kept.scores[j]) - 1));
        }
        return flips;
    }

private:
    Choices::Flips& flips_of(int64_t step) {
        if (flips_.size() <= size_t(step)) flips_.resize(size_t(step) + 1);
        return flips_[size_t(step)];
    }
    // Whether the plain training follows the run.
    bool flip(int64_t step, int64_t choices, double margin) {
        Choices::Flips& flips = flips_of(step);
        flips.flipped += choices, flips.margin = std::max(flips.margin, margin);
        return margin <= most_followed_;
    }

    struct Made {
        Experts experts;
        std::vector<float> scores;
    };
    double most_followed_;
    std::map<Key, Made> made_, kept_;
    std::vector<Choices::Flips> flips_;  // by step
};

}  // namespace ultrascale::expert_parallel
