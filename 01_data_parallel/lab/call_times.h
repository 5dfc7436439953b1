// How long a collective takes, as a distribution: its median, and the 5th and 95th percentile, as
// in the playbook's figure of bandwidths by number of nodes. A mean hides what a step suffers:
// every rank waits for the slowest call.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "comm/comm.h"
#include "lab/report/median_seconds.h"

namespace ultrascale::data_parallel {

// The value below which a share p, 0 to 1, of the values lies, interpolated linearly between two
// values. `sorted` is ascending and not empty.
inline double percentile(const std::vector<double>& sorted, double p) {
    const double at = p * double(sorted.size() - 1), below = std::floor(at);
    const size_t low = size_t(below), high = std::min(low + 1, sorted.size() - 1);
    return sorted[low] + (at - below) * (sorted[high] - sorted[low]);
}

struct CallTimes {
    double p5, median, p95;  // seconds
};

// All ranks call it and get the same result. A sample is a batch of calls back to back, and its
// time is the slowest rank's. Batches of short calls last about 2 ms, because a single call is
// shorter than the time between the ranks' starts. Takes about 0.2 s.
inline CallTimes call_times(const Communicator& ranks, const std::function<void()>& call) {
    const auto sample = [&](int calls) {
        compute_stream().synchronize();
        ranks.barrier();
        return largest_of_ranks(ranks, seconds_per_call(call, calls));
    };
    sample(1);  // warms up
    const double one = sample(2);
    const int calls = std::clamp(int(0.002 / one), 1, 50);
    std::vector<double> seconds(size_t(std::clamp(int(0.15 / (one * calls)), 5, 40)));
    for (double& s : seconds) s = sample(calls);
    std::ranges::sort(seconds);
    return {percentile(seconds, 0.05), percentile(seconds, 0.5), percentile(seconds, 0.95)};
}

}  // namespace ultrascale::data_parallel
