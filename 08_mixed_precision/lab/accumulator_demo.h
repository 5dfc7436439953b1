// --demo accumulator: shows what Hopper's tensor cores lose when they add up products of 8-bit
// numbers in 14 bits, and what is regained if the sum moves to fp32 after every 128 of k
// (accumulator.h). DeepSeek-V3 Technical Report, section 3.3.2: nearly 2 % at k = 4096.
#pragma once

#include <cmath>

#include "../accumulator.h"
#include "core/float_formats.h"
#include "core/random.h"
#include "lab/report/report.h"

namespace ultrascale::mixed_precision {

namespace accumulator_demo {

inline constexpr int64_t M = 32, N = 32;

// Returns numbers of e4m3: normally distributed, or uniform between 0 and 1, whose sums only grow.
inline std::vector<float> numbers(const char* name, int64_t n, bool positive) {
    using F = formats::E4m3;
    const Random random(1, name);
    std::vector<float> all(size_t(n), 0.0f);
    for (int64_t i = 0; i < n; ++i)
        all[size_t(i)] = F::decode(
            F::encode(positive ? random.uniform(uint64_t(i)) : random.normal(uint64_t(i))));
    return all;
}

// Returns the largest error of M x N sums, relative to their root mean square.
inline double largest_error(const std::vector<float>& got, const std::vector<float>& exact) {
    double largest = 0, squares = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        largest = std::max(largest, std::abs(double(got[i]) - double(exact[i])));
        squares += double(exact[i]) * double(exact[i]);
    }
    return largest / std::sqrt(squares / double(got.size()));
}

inline std::vector<float> product(const std::vector<float>& a, const std::vector<float>& b,
                                  int64_t k, const Accumulator& how) {
    std::vector<float> d(size_t(M * N), 0.0f);
    emulated_matmul(d, a, b, M, N, k, how);
    return d;
}

}  // namespace accumulator_demo

// Returns false if promotion does not cure the error at k = 4096.
inline bool demo_accumulator() {
    using namespace accumulator_demo;
    print("products of e4m3 numbers, added up in 14 bits, 32 at a time; the sum is moved to fp32");
    print(fmt::format("largest error of {} sums, relative to their root mean square", M * N));
    print("             normal numbers                  uniform between 0 and 1");
    print("       k     never  every 512  every 128     never  every 512  every 128");
    double worst = 0, cured = 0;
    for (const int64_t k : {128, 512, 1024, 2048, 4096, 8192}) {
        std::string line = fmt::format("  {:>6}", k);
        for (const bool positive : {false, true}) {
            const std::vector<float> a = numbers("a", M * k, positive),
                                     b = numbers("b", N * k, positive),
                                     exact = product(a, b, k, {.bits = 0});
            line += "  ";
            for (const int64_t every : {0, 512, 128}) {
                const double error =
                    largest_error(product(a, b, k, {.promote_every = every}), exact);
                line += fmt::format("{:>{}}", fmt::format("{:.3f} %", 100 * error),
                                    every == 0 ? 9 : 11);
                if (k == 4096 && every == 0) worst = error;
                if (k == 4096 && every == 128) cured = error;
            }
        }
        print(line);
    }
    const bool ok = worst > 5e-3 && cured < worst / 8;
    print(ok ? fmt::format(
                   "at k = 4096 moving the sum to fp32 every 128 makes the error {:.0f} times "
                   "smaller: ok",
                   worst / cured)
             : "WRONG: 14 bits should cost a percent at k = 4096, and promotion should cure it");
    return ok;
}

}  // namespace ultrascale::mixed_precision
