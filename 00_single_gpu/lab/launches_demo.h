// --demo launches: the host's calls launch a GPU's operations and do not wait for them. Three
// clocks on the same matrix products show the consequences.
//
//     host      launch | launch | launch |                     | waits ..............|
//     device            [ product ][ product ][ product ]
//
//     launched   the host's clock around the calls, without waiting: for large products far too
//                short, because the device has hardly begun
//     events     timestamps that the device takes before the first and after the last product
//     waiting    the host waits after every call: the device idles during each launch
//
// If a product is shorter than a launch, the device waits for the host, however it is timed, and
// the time no longer depends on the size: it is the launch overhead. (On a CPU the compute stream
// is the calling thread, and all three clocks agree.)
#pragma once

#include <algorithm>

#include "core/device.h"
#include "core/ops.h"
#include "lab/options/cli.h"
#include "lab/report/median_seconds.h"
#include "lab/report/report.h"

namespace ultrascale::single_gpu {

struct LaunchTimes {
    double launched, events, waiting;  // seconds a call
};

// Times `calls` equal calls; takes the medians of a few rounds, after a round that warms up.
inline LaunchTimes launch_times(const std::function<void()>& call, int calls) {
    std::vector<double> launched, events, waiting;
    for (int round = 0; round < 6; ++round) {
        compute_stream().synchronize();
        const Timestamp first = Timestamp::in(compute_stream());
        const double begin = now_seconds();
        for (int i = 0; i < calls; ++i) call();
        const double returned = now_seconds();
        const Timestamp last = Timestamp::in(compute_stream());
        const double on_device = last.seconds() - first.seconds();
        compute_stream().synchronize();
        const double begin_waiting = now_seconds();
        for (int i = 0; i < calls; ++i) call(), compute_stream().synchronize();
        if (round == 0) continue;
        launched.push_back((returned - begin) / calls), events.push_back(on_device / calls);
        waiting.push_back((now_seconds() - begin_waiting) / calls);
    }
    return {median(launched), median(events), median(waiting)};
}

inline void demo_launches(const Options& options) {
    print(fmt::format("on {}:\nmicroseconds for a product of n x n matrices in {}, by three clocks",
                      device_description(), dtype_name(options.dtype)));
    print("       n   launched     events    waiting    GFLOP/s by events");
    const int64_t largest = device_is_gpu() ? 8192 : 512;
    double smallest_events = 0;
    int64_t bound_until = 0;  // the largest n that takes no longer than the smallest
    for (int64_t n = 16; n <= largest; n *= 2) {
        const auto matrix = [&] { return Tensor::zeros({n, n}, options.dtype, Memory::workspace); };
        const Tensor a = matrix(), b = matrix(), c = matrix();
        const LaunchTimes t =
            launch_times([&] { ops::matmul(c, a, ops::Transpose::no, b, ops::Transpose::no); },
                         n <= 2048 ? 20 : 5);
        print(fmt::format("  {:>6} {:>10.1f} {:>10.1f} {:>10.1f} {:>12.0f}", n, t.launched * 1e6,
                          t.events * 1e6, t.waiting * 1e6,
                          2e-9 * double(n) * double(n) * double(n) / t.events));
        if (smallest_events == 0) smallest_events = t.events;
        if (t.events < 1.5 * smallest_events) bound_until = n;
    }
    if (device_is_gpu())
        print(
            fmt::format("  Up to n = {} a call takes {:.1f} us whatever the size: the launch.\n"
                        "  At n = {} the host's clock, without waiting, would report a multiple "
                        "of the rate.",
                        bound_until, smallest_events * 1e6, largest));
    else
        print(fmt::format(
            "  A CPU computes in the call, so the clocks agree. A call costs {:.1f} us here.\n"
            "  On a GPU \"launched\" stays at a few microseconds at every n. The products up to\n"
            "  about n = 512 take no longer, and how long larger ones take only \"events\" tells.",
            smallest_events * 1e6));
}

}  // namespace ultrascale::single_gpu
