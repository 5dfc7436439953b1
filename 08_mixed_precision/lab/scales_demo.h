// --demo scales: shows how an outlier spoils the numbers that share its scale.
#pragma once

#include <cmath>

#include "../5_tiles.h"
#include "core/ops.h"
#include "core/random.h"
#include "lab/report/report.h"

namespace ultrascale::mixed_precision {

namespace tiles_demo {

inline constexpr int64_t rows = 256, cols = 512;

// Returns ||quantised - x|| / ||x|| over all elements except the outliers.
inline double error(const std::vector<float>& numbers, ops::ScaleGroup group, float outlier) {
    const Tensor x = Tensor::from_host<float>(numbers, {rows, cols}, Memory::workspace),
                 back = Tensor::empty({rows, cols}, DType::fp32, Memory::workspace);
    const ops::Quantised q =
        ops::empty_quantised(rows, cols, DType::e4m3, group, Memory::workspace);
    ops::quantise(q, {}, x, {.group = group});
    ops::dequantise(back, q, group);
    const std::vector<float> got = back.to_host<float>();
    double off = 0, all = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        if (std::abs(numbers[i]) >= outlier) continue;
        off += std::pow(double(got[i]) - double(numbers[i]), 2);
        all += std::pow(double(numbers[i]), 2);
    }
    return std::sqrt(off / all);
}

}  // namespace tiles_demo

// Rounds normal numbers, with a few outliers in one feature, with each kind of scale. Returns false
// if a finer scale is worse than a coarser one.
inline bool demo_scales() {
    using namespace tiles_demo;
    const Random random(1, "scales");
    std::vector<float> plain(size_t(rows * cols));
    for (size_t i = 0; i < plain.size(); ++i) plain[i] = random.normal(i);
    print(
        fmt::format("{} tokens of {} features, normally distributed; in every 64th token "
                    "feature 7 is an outlier",
                    rows, cols));
    print("relative L2 error in e4m3 of all numbers but the outliers");
    print("  outlier      tensor       row      tile     block");
    bool ok = true;
    for (const float outlier : {0.0f, 1e2f, 1e4f, 1e6f}) {
        std::vector<float> numbers = plain;
        if (outlier > 0)
            for (int64_t r = 0; r < rows; r += 64) numbers[size_t(r * cols + 7)] = outlier;
        double errors[4];
        for (int g = 0; g < 4; ++g)
            errors[g] = error(numbers, ops::ScaleGroup(g), outlier > 0 ? outlier : 1e30f);
        print(fmt::format("  {:>7.0e}   {:>9.4f} {:>9.4f} {:>9.4f} {:>9.4f}", double(outlier),
                          errors[0], errors[1], errors[2], errors[3]));
        ok = ok && errors[1] <= errors[0] * 1.01 && errors[2] <= errors[1] * 1.01 &&
             errors[3] <= errors[0] * 1.01;
    }
    print(ok ? "the finer the scales, the fewer numbers an outlier spoils: ok"
             : "WRONG: finer scales should not be worse");
    return ok;
}

}  // namespace ultrascale::mixed_precision
