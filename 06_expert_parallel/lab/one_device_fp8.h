// Rows rounded to fp8 and back on the host, number by number, for --verify; and how far such rows
// are off. It shares no code with the packed rows' operations.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/float_formats.h"

namespace ultrascale::expert_parallel {

// x (N, h), with a scale for each 128 numbers of a row.
inline std::vector<float> rounded_to_fp8(std::vector<float> x) {
    constexpr size_t block = 128;
    for (size_t first = 0; first < x.size(); first += block) {
        float largest = 1e-30f;
        for (size_t i = first; i < first + block; ++i) largest = std::max(largest, std::abs(x[i]));
        const float scale = largest / formats::E4m3::largest(), factor = 1 / scale;
        for (size_t i = first; i < first + block; ++i)
            x[i] = formats::E4m3::decode(formats::E4m3::encode(x[i] * factor, Overflow::saturate)) *
                   scale;
    }
    return x;
}

// The distance of rounded rows from theirs, as a share of a row's length.
struct RoundingError {
    double largest = 0, sum = 0;
    int64_t rows = 0;
    double mean() const { return rows > 0 ? sum / double(rows) : 0; }

    // x, rounded (N, h)
    void add(const std::vector<float>& x, const std::vector<float>& rounded, int64_t h) {
        for (size_t first = 0; first < x.size(); first += size_t(h)) {
            double off = 0, length = 0;
            for (size_t i = first; i < first + size_t(h); ++i) {
                off += std::pow(double(rounded[i]) - double(x[i]), 2);
                length += std::pow(double(x[i]), 2);
            }
            const double share = length > 0 ? std::sqrt(off / length) : 0;
            largest = std::max(largest, share), sum += share, ++rows;
        }
    }
};

}  // namespace ultrascale::expert_parallel
