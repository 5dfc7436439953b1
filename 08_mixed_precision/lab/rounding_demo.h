// --demo rounding: a thousand small additions, rounded to nearest and stochastically.
#pragma once

#include "../8_stochastic_rounding.h"
#include "lab/report/report.h"

namespace ultrascale::mixed_precision {

// Returns false if the sums are not as the table's last line says.
inline bool demo_rounding() {
    constexpr int times = 1000, seeds = 64;
    constexpr float addend = 0.0013f;
    const double exact = 1 + double(addend) * times;
    print(fmt::format("1 + {} * {:.4f} = {:.3f}, rounded to bf16 after each addition", times,
                      double(addend), exact));
    const double nearest = rounded_sum<formats::Bf16>(addend, times, nullptr);
    double sum = 0, squares = 0;
    for (int seed = 0; seed < seeds; ++seed) {
        const Random random(uint64_t(seed), "demo");
        const double one = rounded_sum<formats::Bf16>(addend, times, &random);
        sum += one, squares += one * one;
    }
    const double mean = sum / seeds, deviation = std::sqrt(squares / seeds - mean * mean);
    print(
        fmt::format("  to nearest     {:.3f}: each addition is less than half of 1/128", nearest));
    print(fmt::format("  stochastically {:.3f} on average over {} seeds, standard deviation {:.3f}",
                      mean, seeds, deviation));
    // The mean of `seeds` results is about one standard deviation / sqrt(seeds) away.
    const bool ok = nearest == 1 && std::abs(mean - exact) <= 5 * deviation / std::sqrt(seeds);
    print(ok ? "to nearest nothing is added at all; stochastically the mean is the exact sum: ok"
             : "WRONG: the mean should be the exact sum");
    return ok;
}

}  // namespace ultrascale::mixed_precision
