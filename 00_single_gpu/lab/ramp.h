// Shared by --batch-ramp and --seq-ramp: a list of sizes, each for a part of the training, written
// SIZE:SPAN,SIZE:SPAN,...,SIZE.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"

namespace ultrascale::single_gpu {

struct RampStage {
    std::string size, span;  // an empty span lasts to the end
};

// Reads the stages of a ramp. `valid` says whether a stage's words can be read. Throws UserError,
// which shows the `expected` form, if one cannot, or if a stage other than the last has no span.
template <class Valid>
std::vector<RampStage> stages_of_ramp(const std::string& option, const std::string& text,
                                      const std::string& expected, Valid valid) {
    std::vector<RampStage> stages;
    std::stringstream parts(text);
    bool ok = !text.ends_with(',');
    for (std::string part; ok && std::getline(parts, part, ',');) {
        const size_t colon = part.find(':');
        const bool last = parts.eof();
        stages.push_back({part.substr(0, colon), last ? "" : part.substr(colon + 1)});
        ok = last == (colon == std::string::npos) && last == stages.back().span.empty() &&
             valid(stages.back());
    }
    if (!ok) user_error("{} {}: expected {}", option, text, expected);
    return stages;
}

// The whole text as a number from 1 to 10^9, or -1 if it is not one.
inline int64_t count_in(const std::string& text) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size() && value >= 1 &&
                   value <= 1'000'000'000
               ? value
               : -1;
}
// A number with a suffix ("%", "M"): the number, or -1 if it is not one from `least` to `most`.
inline double number_before(const std::string& text, size_t suffix, double least, double most) {
    double value = 0;
    const char *begin = text.data(), *until = begin + text.size() - suffix;
    const auto [end, error] = std::from_chars(begin, until, value, std::chars_format::fixed);
    return text.size() > suffix && error == std::errc() && end == until && value >= least &&
                   value <= most
               ? value
               : -1;
}
// A number of tokens: "16M", "69B", "4.7T" (K, M, B, T: 10^3, 10^6, 10^9, 10^12), or -1.
inline double tokens_in(const std::string& text) {
    const size_t suffix = text.empty() ? std::string::npos : std::string("KMBT").find(text.back());
    if (suffix == std::string::npos) return -1;
    const double number = number_before(text, 1, 1e-9, 1e6);
    return number < 0 ? -1 : number * std::pow(1000, double(suffix + 1));
}

}  // namespace ultrascale::single_gpu
