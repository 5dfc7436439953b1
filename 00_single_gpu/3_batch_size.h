// How large a batch is worth its cost.
//
// Gradient noise scale (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training",
// appendix A.1): the gradient g_B of a batch of B sequences has
//   E|g_B|^2 = |G|^2 + tr(S)/B,
// where G is the true gradient and S the covariance of a single sequence's gradient. Two batch
// sizes give two equations, so
//   tr(S) = (|g_b|^2 - |g_B|^2) / (1/b - 1/B)  and  |G|^2 = (B |g_B|^2 - b |g_b|^2) / (B - b).
// B_noise = tr(S) / |G|^2 estimates the critical batch size: below it, doubling the batch halves
// the number of steps; far above it, it no longer does.
#pragma once

#include <cmath>
#include <cstdint>

namespace ultrascale::single_gpu {

// Moving averages of tr(S) and |G|^2 over steps. They are divided only at the end, since a single
// step's estimate is very noisy.
class NoiseScale {
public:
    // Adds the squared norms of the mean gradient over `small` and over `big` sequences of one
    // step.
    void add(double small, double small_squared_norm, double big, double big_squared_norm) {
        // exercise 00.3 begin: moving averages of tr(S) and |G|^2, from the formulas above
        trace_ = decay_ * trace_ +
                 (1 - decay_) * (small_squared_norm - big_squared_norm) / (1 / small - 1 / big);
        squared_gradient_ =
            decay_ * squared_gradient_ +
            (1 - decay_) * (big * big_squared_norm - small * small_squared_norm) / (big - small);
        // exercise 00.3 end
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

}  // namespace ultrascale::single_gpu
