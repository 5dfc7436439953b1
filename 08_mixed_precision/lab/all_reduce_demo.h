// --demo all-reduce: shows what is left of gradients that n ranks sum in e4m3, with each factor
// (9_fp8_all_reduce.h). One rank plays all of them: it splits its gradient into n, which have a
// common part and noise of their own, as the gradients of different samples have.
#pragma once

#include <cmath>

#include "../9_fp8_all_reduce.h"
#include "core/random.h"
#include "lab/report/report.h"

namespace ultrascale::mixed_precision {

namespace all_reduce_demo {

inline constexpr int64_t elements = 16384;

struct Result {
    double signal_to_noise;  // dB
    double saturated, lost;  // shares of all sums: at 448; 0, though the exact sum is not
};

// Magnitudes over several powers of two, like a gradient's: exp(1.5 x), x normal.
inline float element(int rank, int64_t i) {
    const Random common(1, "common"), own(uint64_t(rank + 2), "own"), size(1, "size");
    const float spread = std::exp(1.5f * size.normal(uint64_t(i)));
    return spread * (common.normal(uint64_t(i)) + 0.5f * own.normal(uint64_t(i)));
}

// `each`: a sum is rounded after every addition, as in a ring of ranks that pass sums on in e4m3;
// otherwise only once, at the end, as in 9_fp8_all_reduce.h.
inline Result sum_in_fp8(const std::vector<std::vector<float>>& gradients, double factor,
                         bool each = true) {
    using F = formats::E4m3;
    float amax = 0;
    for (const auto& rank_gradient : gradients)
        for (float x : rank_gradient) amax = std::max(amax, std::abs(x));
    const float scale = amax / F::largest() / float(factor);
    double signal = 0, noise = 0;
    int64_t saturated = 0, lost = 0;
    for (size_t i = 0; i < gradients[0].size(); ++i) {
        double exact = 0;
        float sum = 0;
        for (const auto& rank_gradient : gradients) {
            exact += double(rank_gradient[i]);
            const float rounded =
                F::decode(F::encode(rank_gradient[i] / scale, Overflow::saturate));
            sum = each ? F::decode(F::encode(sum + rounded, Overflow::saturate)) : sum + rounded;
        }
        sum = F::decode(F::encode(sum, Overflow::saturate));
        saturated += std::abs(sum) == F::largest(), lost += sum == 0;
        signal += exact * exact, noise += std::pow(double(sum) * double(scale) - exact, 2);
    }
    const double n = double(gradients[0].size());
    return {10 * std::log10(signal / noise), double(saturated) / n, double(lost) / n};
}

// Returns the factor at which the automatic one settles: it is halved until few sums saturate.
inline double settled(const std::vector<std::vector<float>>& gradients) {
    double mu = 1;
    while (sum_in_fp8(gradients, mu, false).saturated > 1e-5) mu /= 2;
    return mu;
}

}  // namespace all_reduce_demo

// Returns false if the automatic factor saturates, or is not the best of the three.
inline bool demo_all_reduce() {
    using namespace all_reduce_demo;
    print(fmt::format(
        "{} gradients summed over n ranks in e4m3: signal / noise, sums at 448, sums lost "
        "to 0",
        elements));
    print(
        "  ranks        post: f = 1             pre: f = 1/n             automatic, f       "
        "rounded "
        "once");
    bool ok = true;
    std::vector<std::vector<float>> gradients;
    for (const int n : {2, 4, 8, 16, 32, 64}) {
        while (int(gradients.size()) < n) {
            std::vector<float> rank_gradient(elements);
            for (int64_t i = 0; i < elements; ++i)
                rank_gradient[size_t(i)] = element(int(gradients.size()), i);
            gradients.push_back(std::move(rank_gradient));
        }
        const double mu = settled(gradients);
        const Result post = sum_in_fp8(gradients, 1), pre = sum_in_fp8(gradients, 1.0 / n),
                     automatic = sum_in_fp8(gradients, mu), once = sum_in_fp8(gradients, mu, false);
        std::string line = fmt::format("  {:>5}", n);
        for (const Result& r : {post, pre, automatic})
            line += fmt::format("  {:>4.1f} dB {:>5.2f} % {:>4.1f} %", r.signal_to_noise,
                                100 * r.saturated, 100 * r.lost);
        print(line + fmt::format(" 1/{:<2g}  {:>4.1f} dB", 1 / mu, once.signal_to_noise));
        ok = ok && once.saturated <= 1e-5 && once.lost <= pre.lost &&
             once.signal_to_noise > std::max(pre.signal_to_noise, post.signal_to_noise) - 0.5;
    }
    print(ok ? "with sums that are rounded once, the automatic factor loses least: ok"
             : "WRONG: the automatic factor, rounded once, should lose least");
    return ok;
}

}  // namespace ultrascale::mixed_precision
