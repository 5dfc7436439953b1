// Measures how long operations on the compute stream take.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <concepts>
#include <functional>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "core/stream.h"
#include "core/trace.h"

namespace ultrascale {

// For an even number of values: the higher of the two in the middle.
inline double median(std::vector<double> values) {
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::ranges::nth_element(values, middle);
    return *middle;
}

// Seconds per call when `calls` calls run back to back without waiting for the device.
inline double seconds_per_call(const std::function<void()>& call, int calls) {
    compute_stream().synchronize();
    const double begin = now_seconds();
    for (int i = 0; i < calls; ++i) call();
    compute_stream().synchronize();
    return (now_seconds() - begin) / calls;
}

// The least time for which a function is called before its time counts, and then is measured.
struct Turns {
    double settling_seconds = 0.25, batch_seconds = 0.03;
};

// Seconds per call of each function in `compared`: the median over batches of calls that run back
// to back without waiting for the device, as in training. The functions take turns, because a GPU
// gets hotter and slower the longer it computes; in this way all are affected alike. Each round of
// each run has another order, and the first calls of a turn do not count, because the GPU's clock
// rate is still adapting from the previous function's power draw to this one's.
//
// Functions that communicate are called by several ranks: `largest` returns the largest of the
// ranks' values, so all ranks make the same number of calls, and a batch lasts as long as on the
// slowest rank.
template <std::invocable<double> Largest>
std::vector<double> median_seconds(const std::vector<std::function<void()>>& compared,
                                   Largest&& largest, const Turns& turns = {}) {
    constexpr int rounds = 5;
    std::vector<std::vector<double>> seconds(compared.size());
    std::vector<int> calls, settling_calls;
    for (const auto& call : compared) {
        seconds_per_call(call, 1);  // warms up
        const double first = largest(seconds_per_call(call, 1));
        const auto lasting = [&](double at_least, double most) {
            return int(std::clamp(std::ceil(at_least / first), 1.0, most));
        };
        calls.push_back(lasting(turns.batch_seconds, 500));
        settling_calls.push_back(lasting(turns.settling_seconds, 5000));
    }
    std::vector<size_t> order(compared.size());
    std::iota(order.begin(), order.end(), 0);
    std::mt19937 random(unsigned(largest(std::random_device{}())));  // all ranks' orders are alike
    for (int round = 0; round < rounds; ++round) {
        std::ranges::shuffle(order, random);
        for (const size_t i : order)
            if (calls[i] > 1 || round < 3) {  // for slow calls three rounds are enough
                if (compared.size() > 1) seconds_per_call(compared[i], settling_calls[i]);
                seconds[i].push_back(largest(seconds_per_call(compared[i], calls[i])));
            }
    }
    std::vector<double> medians;
    for (std::vector<double>& s : seconds) medians.push_back(median(std::move(s)));
    return medians;
}
inline std::vector<double> median_seconds(const std::vector<std::function<void()>>& compared,
                                          const Turns& turns = {}) {
    return median_seconds(
        compared, [](double seconds) { return seconds; }, turns);
}

// Seconds of a call as short scripts measure it: the device rests, two calls do not count, and the
// median of five calls follows, each of which is waited for. A rested GPU has not yet reached its
// power limit, and is faster than in median_seconds.
inline double rested_seconds(const std::function<void()>& call) {
    compute_stream().synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    std::vector<double> seconds;
    for (int i = 0; i < 7; ++i) seconds.push_back(seconds_per_call(call, 1));
    return median({seconds.begin() + 2, seconds.end()});
}

}  // namespace ultrascale
