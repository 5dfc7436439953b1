// Stochastic rounding: a number between two codes becomes the upper one with the probability that
// makes the expected result exact.
//
//     x = 1.0013 in bf16, whose numbers are 1/128 apart above 1:
//
//     1 ------x---------------------------------------------- 1.0078
//     nearest     always 1: adding 0.0013 a thousand times changes nothing
//     stochastic  1.0078 in 17 % of all cases: after a thousand additions about 2.3
//
// That is what happens to a weight in 16 bits whose update is less than half the distance to the
// next number. The cure is a master copy in fp32 (4 bytes a weight), or stochastic rounding (none):
// the sum then makes steps that are too large, but only as often as they are due. Its price is
// noise, of the order of sqrt(number of updates) * half a distance.
//
// The random bits are Philox's, keyed by seed, step and parameter's name and counted by element
// (core/random.h), so that a resumed run, and a rank that holds a part, round alike.
//
// Gupta et al. 2015, Deep Learning with Limited Numerical Precision (arXiv 1502.02551); for bf16
// training Zamirai et al. 2020 (arXiv 2010.06192).
#pragma once

#include <fmt/format.h>

#include <cmath>

#include "core/float_formats.h"
#include "core/random.h"
#include "lab/report/report.h"

namespace ultrascale::mixed_precision {

// The sum of `addend` `times` times, from 1, rounded after each addition.
template <class F>
double rounded_sum(float addend, int times, const Random* random) {
    float sum = 1;
    for (int i = 0; i < times; ++i) {
        const float exact = sum + addend;
        sum = F::decode(random ? F::encode_stochastic(exact, random->bits(uint64_t(i)))
                               : F::encode(exact));
    }
    return double(sum);
}

// --demo rounding. Returns false if the sums are not as the table's last line says.
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
    // The mean of `seeds` results is a standard deviation / sqrt(seeds) away.
    const bool ok = nearest == 1 && std::abs(mean - exact) <= 5 * deviation / std::sqrt(seeds);
    print(ok ? "to nearest nothing is added at all; stochastically the mean is the exact sum: ok"
             : "WRONG: the mean should be the exact sum");
    return ok;
}

}  // namespace ultrascale::mixed_precision
