// Without a GPU: counts each kernel's memory accesses with the microscope
// (common/emulator/microscope.h).
#ifndef ULTRASCALE_CUDA
#include <fmt/format.h>

#include <algorithm>

#include "emulator/microscope.h"
#include "measure.h"

namespace ultrascale::kernels {
namespace {

// The sums over all kernels that one run launched.
struct Traffic {
    simt::Counts load, store, atomic, shared_load, shared_store, shared_atomic, all;
    double cost = 0;  // the sum of the kernels' costs (cost.h), in bytes

    // Bank conflicts of loads or of stores, whichever have more; 0: no such accesses.
    double ways() const { return std::max(shared_load.ways(), shared_store.ways()); }
};
double memory_bytes(const Traffic& t) {
    return sector_bytes * double(t.load.sectors + t.store.sectors + t.atomic.lanes);
}
double shared_bytes(const Traffic& t) {
    return turn_bytes * double(t.shared_load.wavefronts + t.shared_store.wavefronts +
                               t.shared_atomic.wavefronts);
}
Traffic& operator+=(Traffic& sum, const Traffic& t) {
    sum.load += t.load, sum.store += t.store, sum.atomic += t.atomic;
    sum.shared_load += t.shared_load, sum.shared_store += t.shared_store;
    sum.shared_atomic += t.shared_atomic, sum.all += t.all, sum.cost += t.cost;
    return sum;
}
Traffic sums(const simt::Observation& observation) {
    Traffic sum;
    for (const simt::KernelCounts& kernel : observation.kernels) {
        Traffic t;
        t.load += kernel.total(simt::Access::global_load);
        t.store += kernel.total(simt::Access::global_store);
        t.atomic += kernel.total(simt::Access::global_atomic);
        t.shared_load += kernel.total(simt::Access::shared_load);
        t.shared_store += kernel.total(simt::Access::shared_store);
        t.shared_atomic += kernel.total(simt::Access::shared_atomic);
        t.all += kernel.total();
        t.cost = std::max(memory_bytes(t), shared_bytes(t));
        sum += t;
    }
    return sum;
}

Cost cost_of(const Traffic& t, double least_bytes) {
    Cost cost{.total = t.cost / least_bytes,
              .memory = memory_bytes(t) / least_bytes,
              .shared = shared_bytes(t) / least_bytes,
              .atomics = double(t.atomic.lanes)};
    int64_t most_lost = 0;
    for (const auto& [name, counts] : {std::pair("loads", t.shared_load),
                                       {"stores", t.shared_store},
                                       {"atomic operations", t.shared_atomic}}) {
        const int64_t lost = counts.wavefronts - counts.ideal_wavefronts;
        if (lost <= most_lost) continue;
        most_lost = lost;
        cost.conflicts = name;
        cost.turns = double(counts.wavefronts) / double(counts.requests);
        cost.at_best = double(counts.ideal_wavefronts) / double(counts.requests);
    }
    return cost;
}

std::vector<std::pair<std::string, double>> named(const Traffic& t) {
    return {{"load_requests", double(t.load.requests)},
            {"load_sectors", double(t.load.sectors)},
            {"store_requests", double(t.store.requests)},
            {"store_sectors", double(t.store.sectors)},
            {"shared_load_requests", double(t.shared_load.requests)},
            {"shared_load_wavefronts", double(t.shared_load.wavefronts)},
            {"shared_store_requests", double(t.shared_store.requests)},
            {"shared_store_wavefronts", double(t.shared_store.wavefronts)},
            {"active_threads", t.all.active_threads()}};
}

}  // namespace

std::string races_of(const Kernel& kernel, const Trial& trial) {
    simt::Microscope microscope;
    kernel.run(trial.arguments);
    const simt::Observation observation = microscope.take();
    if (observation.races.empty()) return "";
    const simt::Race& race = observation.races[0];
    const auto side = [](const simt::Race::Side& s) {
        const char* kind = s.access == simt::Access::shared_load    ? "load"
                           : s.access == simt::Access::shared_store ? "store"
                                                                    : "atomic";
        return fmt::format("{}:{} ({})", s.file, s.line, kind);
    };
    return fmt::format("; race: {} and {}", side(race.one), side(race.other));
}

std::vector<KernelResult> measure(const Problem& problem, const LadderOptions& options,
                                  const std::vector<Sizes>& sizes,
                                  const std::vector<KernelResult>& right) {
    if (right.empty()) return {};
    for (const Sizes& size : sizes)
        fmt::print("{}{}: {}. {:.3g} MFLOP, at least {:.4g} KB, {:.3g} FLOP/byte\n",
                   size == sizes[0] ? "\n" : "", problem.name, text(problem, size),
                   problem.flops(size) / 1e6, problem.bytes(size) / 1e3,
                   problem.flops(size) / problem.bytes(size));
    print_ideas(right);
    const char* row = "  {:<28} {:>8} {:>8} {:>8} {:>8} {:>10} {:>8} {:>6} {:>6}\n";
    fmt::print("  {:<37} {:>8} {:>8} {:>8} {:>10} {:>8}\n", "", "sectors", "sectors", "moved",
               "bank", "threads");
    fmt::print(fmt::runtime(row), "", "error", "a load", "a store", "/ least", "conflicts", "of 32",
               "races", "cost");
    std::vector<KernelResult> results;
    std::string lines;
    for (const Sizes& size : sizes) {
        const Trial trial = make_trial(problem, size, options.seed);
        for (KernelResult result : right) {
            simt::Microscope microscope;
            result.kernel->run(trial.arguments);
            const simt::Observation observation = microscope.take();
            result.size = size;
            const Traffic traffic = sums(observation);
            result.traffic = double(traffic.load.bytes_moved() + traffic.store.bytes_moved() +
                                    traffic.atomic.bytes_moved()) /
                             problem.bytes(size);
            result.cost = cost_of(traffic, problem.bytes(size));
            result.seen = named(traffic);
            result.seen.emplace_back("cost", result.cost.total);
            result.seen.emplace_back("races", double(observation.races.size()));
            if (!observation.races.empty())
                result.wrong = fmt::format("{} race{}", observation.races.size(),
                                           observation.races.size() == 1 ? "" : "s");
            const auto number = [](const simt::Counts& counts, double value, const char* unit) {
                return counts.requests ? fmt::format("{:.1f}{}", value, unit) : std::string("-");
            };
            fmt::print(fmt::runtime(row), label(problem, result, sizes, right),
                       fmt::format("{:.1e}", result.error),
                       number(traffic.load, traffic.load.sectors_per_request(), ""),
                       number(traffic.store, traffic.store.sectors_per_request(), ""),
                       fmt::format("{:.2f}", result.traffic),
                       traffic.ways() > 0 ? fmt::format("{:.1f}-way", traffic.ways()) : "-",
                       fmt::format("{:.1f}", traffic.all.active_threads()),
                       observation.races.size(), fmt::format("{:.2f}", result.cost.total));
            if (options.by_line || !observation.races.empty())
                lines += "\n" + simt::table(observation);
            results.push_back(result);
        }
    }
    fmt::print("{}", lines);
    return results;
}

}  // namespace ultrascale::kernels
#endif
