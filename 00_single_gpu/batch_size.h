// Batch size: how it grows during training, and how large it is worth making it.
//
// Batch-size ramp: small batches make quick progress while the gradient is large, big ones average
// the noise away later. DeepSeek-V3's report raises the batch from 3,072 to 15,360 sequences over
// the first 469 B tokens.
//
// Gradient noise scale (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training",
// appendix A.1): the gradient g_B of a batch of B sequences has
//   E|g_B|^2 = |G|^2 + tr(S)/B,
// with G the true gradient and S the covariance of a single sequence's gradient. Two batch sizes
// give two equations, so
//   tr(S) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)  and  |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b).
// B_noise = tr(S) / |G|^2 estimates the critical batch size: below it, doubling the batch halves
// the number of steps; far above it, it no longer does.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"

namespace ultrascale {

// "8:100,16:200,32": 8 sequences a step for 100 steps, then 16 for 200 steps, then 32.
class BatchRamp {
public:
    // With an empty `text` every step has `batch` sequences. Sizes must be multiples of the
    // micro-batch, because a step consists of whole micro-batches.
    BatchRamp(const std::string& text, int64_t batch, int64_t micro_batch) {
        std::stringstream parts(text);
        int64_t until = 0;
        for (std::string part; std::getline(parts, part, ',');) {
            const size_t colon = part.find(':');
            const bool last = parts.eof();
            const int64_t size = positive(part.substr(0, colon)),
                          steps = colon == std::string::npos ? 0 : positive(part.substr(colon + 1));
            if (size < 1 || steps < 0 || last != (steps == 0))
                user_error(
                    "--batch-ramp {}: expected SIZE:STEPS,SIZE:STEPS,...,SIZE, e.g. "
                    "8:100,16:200,32",
                    text);
            if (size % micro_batch != 0)
                user_error("--batch-ramp: {} is not a multiple of --micro-batch {}", size,
                           micro_batch);
            until = last ? INT64_MAX : until + steps;
            stages_.push_back({until, size});
        }
        if (stages_.empty()) stages_.push_back({INT64_MAX, batch});
    }

    int64_t sequences(int64_t step) const {
        for (const Stage& stage : stages_)
            if (step < stage.until_step) return stage.size;
        return stages_.back().size;
    }

    int64_t largest() const {
        int64_t most = 0;
        for (const Stage& stage : stages_) most = std::max(most, stage.size);
        return most;
    }

private:
    // The whole text as a number from 1 to 10^9, or -1 if it is not one.
    static int64_t positive(const std::string& text) {
        int64_t value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        return error == std::errc() && end == text.data() + text.size() && value >= 1 &&
                       value <= 1'000'000'000
                   ? value
                   : -1;
    }
    struct Stage {
        int64_t until_step, size;
    };
    std::vector<Stage> stages_;
};

// Moving averages of tr(S) and |G|^2 over steps, divided only at the end, since a single step's
// estimate is very noisy.
class NoiseScale {
public:
    // Squared norms of the mean gradient over `small` and over `big` sequences of the same step.
    void add(double small, double small_squared_norm, double big, double big_squared_norm) {
        trace_ = decay_ * trace_ +
                 (1 - decay_) * (small_squared_norm - big_squared_norm) / (1 / small - 1 / big);
        squared_gradient_ =
            decay_ * squared_gradient_ +
            (1 - decay_) * (big * big_squared_norm - small * small_squared_norm) / (big - small);
        ++count_;
    }
    int64_t count() const { return count_; }
    double trace() const { return trace_ / correction(); }                        // tr(S)
    double squared_gradient() const { return squared_gradient_ / correction(); }  // |G|^2
    double sequences() const { return trace_ / squared_gradient_; }               // B_noise

private:
    double correction() const { return 1 - std::pow(decay_, double(count_)); }
    static constexpr double decay_ = 0.95;
    double trace_ = 0, squared_gradient_ = 0;
    int64_t count_ = 0;
};

}  // namespace ultrascale
