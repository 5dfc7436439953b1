// --demo failures: how often should a large cluster save a checkpoint? An imagined cluster trains,
// fails, and continues from its last checkpoint. Nothing is trained.
//
//     train T | save C | train T | save C | train ... failure | restart R | train T | save C | ...
//                                         |    lost work      |
//
// A GPU runs for M1 seconds on average before it fails, so a cluster of N GPUs fails every M = M1/N
// seconds. It may fail at any moment, so on average half an interval's work is lost. If T is much
// shorter than M, the share of the time that is lost is therefore
//
//     C/T + (T/2 + R)/M        stalls + lost work + restarts
//
// The first two terms add up to the least if they are equal, at T = sqrt(2 C M): J. W. Young, "A
// first order approximation to the optimum checkpoint interval", 1974. J. T. Daly, "A higher order
// estimate of the optimum checkpoint interval for restart dumps", 2006, also counts several
// failures in one interval, and failures during saves and restarts.
//
// If the save is asynchronous, training stops only while the state is copied to the host's memory
// (a small C), and goes on while it is written. A failure before the end of the write needs the
// checkpoint before, so B seconds of writing behind the training cost as much as a restart that
// takes B longer. A write must be over when the next begins, so T is at least B.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>

#include "core/random.h"
#include "lab/predict/estimate.h"
#include "lab/report/report.h"

namespace ultrascale::single_gpu {

// How a cluster saves and fails, in seconds.
struct Saving {
    double stall;             // C
    double behind;            // B: how long the write goes on while training does; may be 0
    double restart;           // R
    double between_failures;  // M

    double young() const { return std::sqrt(2 * stall * between_failures); }
    double daly() const {
        const double x = stall / (2 * between_failures);
        return x < 1 ? young() * (1 + std::sqrt(x) / 3 + x / 9) - stall : between_failures;
    }
    // The share of the time that is lost if every save follows T seconds of training: to first
    // order, and exactly (for failures that do not depend on each other).
    double lost_first_order(double T) const {
        return stall / T + (T / 2 + behind + restart) / between_failures;
    }
    double lost_exactly(double T) const {
        const double M = between_failures;
        return 1 - T / (M * std::exp((restart + behind) / M) * std::expm1((T + stall) / M));
    }
};

// Shares of the time.
struct Lost {
    double stalls, work, restarts;
    double all() const { return stalls + work + restarts; }
};

// Trains `runs` times for `seconds`, with failures at random moments, and a save after every T >=
// saving.behind seconds; returns the mean of the runs. The same seed draws the same failures for
// every T.
inline Lost simulate_failures(const Saving& saving, double T, double seconds, int runs,
                              uint64_t seed) {
    const Random random(seed, "failures");
    const double period = T + saving.stall;
    double stalls = 0, work = 0, restarts = 0;
    uint64_t draw = 0;
    for (int run = 0; run < runs; ++run) {
        double now = 0, restart = 0;  // a run's first start costs nothing
        while (now < seconds) {
            const double to_failure = -saving.between_failures * std::log(random.uniform(draw++));
            const bool fails = now + to_failure < seconds;
            const double up = fails ? to_failure : seconds - now;
            const double trains = std::max(0.0, up - restart),
                         periods = std::floor(trains / period), rest = trains - periods * period;
            restarts += up - trains;
            stalls += periods * saving.stall + std::max(0.0, rest - T);
            const double saved = std::max(0.0, std::floor((trains - saving.behind) / period)) * T;
            if (fails) work += periods * T + std::min(rest, T) - saved;
            now += up, restart = saving.restart;
        }
    }
    const double all = seconds * runs;
    return {stalls / all, work / all, restarts / all};
}

// The cluster is that of Llama 3 405B (arXiv 2407.21783): section 3.3.4 counts its failures, and
// says that more than 90 % of the time were effective; by 3.3.1 its storage sustains 2 TB/s. We
// assume the time of a restart, 50 of the 64 GB/s of a GPU's PCIe 5 link, and parts of equal size.
inline void demo_failures(uint64_t seed) {
    constexpr double days = 86400, seconds = 54 * days, failures = 419, gpus = 16384;
    constexpr double storage = 2e12, pcie = 50e9, restart = 600;
    constexpr int runs = 400;
    const double between = seconds / failures * gpus;  // a single GPU's failures
    const double bytes = 14 * double(parameter_count(preset("llama-3-405b")));
    const auto waits = [&](double n, double R) {
        return Saving{bytes / storage, 0, R, between / n};
    };
    const auto copies = [&](double n, double R) {
        const double copy = bytes / n / pcie;
        return Saving{copy, bytes / storage - copy, R, between / n};
    };
    const auto simulated = [&](const Saving& saving, double T) {
        return simulate_failures(saving, T, seconds, runs, seed);
    };
    const auto text = [](double s) {
        return s < 10     ? fmt::format("{:.1f} s", s)
               : s < 600  ? fmt::format("{:.0f} s", s)
               : s < 7200 ? fmt::format("{:.3g} min", s / 60)
                          : fmt::format("{:.3g} h", s / 3600);
    };

    print(fmt::format("Llama 3 405B on {} H100s: {} unexpected interruptions in 54 days", gpus,
                      failures));
    print(fmt::format("  that is one in {}; a GPU and what belongs to it fail once in {:.1f} years",
                      text(between / gpus), between / (365.25 * days)));
    print(
        fmt::format("  a checkpoint has 14 bytes a parameter: {:.2f} TB, in its storage after "
                    "{:.1f} s at 2 TB/s",
                    bytes / 1e12, bytes / storage));
    print(fmt::format(
        "  a GPU's part of it has {:.0f} MB, in the host's memory after {:.1f} ms at 50 GB/s",
        bytes / gpus / 1e6, 1e3 * bytes / gpus / pcie));
    print(
        fmt::format("  a restart takes {:.0f} min, we assume; the real run lost less than 10 %, "
                    "{:.1f} min each",
                    restart / 60, 0.1 * seconds / failures / 60));

    print(fmt::format("\n{:29}{:^23}   {}", "", "% lost, by formula",
                      fmt::format("% lost, simulated {} times for 54 days", runs)));
    print(fmt::format("  {:<18} {:>7} {:>13} {:>8}   {:>8} = {:>7} + {:>9} + {:>8}",
                      "during a save", "T", "first order", "exact", "all", "stalls", "lost work",
                      "restarts"));
    const auto row = [&](const char* name, const Saving& saving, double T) {
        const Lost lost = simulated(saving, T);
        print(fmt::format(
            "  {:<18} {:>7} {:>13.2f} {:>8.2f}   {:>8.2f} {:>9.2f} {:>11.2f} {:>10.2f}", name,
            text(T), 100 * saving.lost_first_order(T), 100 * saving.lost_exactly(T),
            100 * lost.all(), 100 * lost.stalls, 100 * lost.work, 100 * lost.restarts));
    };
    const Saving wait = waits(gpus, restart), copy = copies(gpus, restart);
    row("training waits", wait, 60);
    row("  Daly's T", wait, wait.daly());
    row("  Young's T", wait, wait.young());
    for (const double T : {600.0, 1800.0, 3600.0, 10800.0}) row("", wait, T);
    row("training goes on", copy, copy.behind);
    row("  Young's T", copy, copy.young());
    row("", copy, 60);

    print(fmt::format("\n{:18}{:>26}{:>26}{:>26}", "", "training waits", "training goes on",
                      "... and restarts in 1 min"));
    print(fmt::format("  {:>6} {:>9}{:>9}{:>7}{:>10}{:>9}{:>7}{:>10}{:>9}{:>7}{:>10}", "GPUs",
                      "failure", "T", "exact", "simulated", "T", "exact", "simulated", "T", "exact",
                      "simulated"));
    for (const double n : {1024.0, 16384.0, 131072.0}) {
        std::string line = fmt::format("  {:>6} {:>9}", n, text(between / n));
        for (const Saving& s : {waits(n, restart), copies(n, restart), copies(n, 60)}) {
            const double T = std::max(s.young(), s.behind);
            line += fmt::format("{:>9}{:>7.2f}{:>10.2f}", text(T), 100 * s.lost_exactly(T),
                                100 * simulated(s, T).all());
        }
        print(line);
    }
}

}  // namespace ultrascale::single_gpu
