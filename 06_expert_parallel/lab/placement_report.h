// What placing experts by load (12_replicas.h) should do to the ranks' loads, what it did, and what
// it costs.
#pragma once

#include "expert_run.h"

namespace ultrascale::expert_parallel {

using RankLoads = std::vector<std::vector<double>>;  // (layers with experts, ranks)

// The largest load of a rank over the mean, averaged over the layers: in each layer all ranks wait
// for that one.
inline double busiest_over_mean(const RankLoads& by_layer) {
    double sum = 0;
    for (const std::vector<double>& load : by_layer)
        sum += *std::ranges::max_element(load) * double(load.size()) /
               std::reduce(load.begin(), load.end());
    return sum / double(by_layer.size());
}
// The loads of `ranks` ranks that hold neighbouring experts (if E is no multiple of `ranks`, some
// hold one more than others); and as experts are placed.
inline RankLoads loads_in_order(const std::vector<std::vector<float>>& loads, int64_t ranks) {
    RankLoads of_ranks;
    for (const std::vector<float>& load : loads) {
        std::vector<double>& here = of_ranks.emplace_back(size_t(ranks), 0.0);
        for (size_t e = 0; e < load.size(); ++e)
            here[e * size_t(ranks) / load.size()] += double(load[e]);
    }
    return of_ranks;
}
inline RankLoads loads_as_placed(const std::vector<Placement>& placements) {
    RankLoads of_ranks;
    for (const Placement& placement : placements) of_ranks.push_back(placement.load);
    return of_ranks;
}
// The rows of a step on each rank of "ep", summed over "dp". All ranks call it.
inline RankLoads measured_loads(const std::vector<double>& here, int ep) {
    RankLoads of_ranks(here.size(), std::vector<double>(size_t(ep), 0.0));
    size_t rank = 0;
    for (const std::string& bytes : Communicator::world().gather_strings(bytes_of(here))) {
        const auto rows = from_bytes<double>(bytes);
        for (size_t l = 0; l < rows.size(); ++l) of_ranks[l][rank % size_t(ep)] += rows[l];
        ++rank;
    }
    return of_ranks;
}

inline void report_placement(Report& report, const ExpertOptions& o, const ExpertRun& seen,
                             const PredictedCommunication& of_step) {
    const std::vector<std::vector<double>>& steps = seen.rows_of_steps();
    const double in_order = busiest_over_mean(loads_in_order(o.loads, o.ep)),
                 placed = busiest_over_mean(loads_as_placed(seen.placements())),
                 first = busiest_over_mean(measured_loads(steps.front(), o.ep)),
                 last = busiest_over_mean(measured_loads(steps.back(), o.ep));
    print(
        fmt::format("  rows of the busiest rank over the mean, average of the layers:\n"
                    "    by --loads {:.3f} in order, {:.3f} as placed; here {:.3f} in step 1, "
                    "{:.3f} in step {}",
                    in_order, placed, first, last, steps.size()));
    report.value("experts", "busiest_in_order", in_order);
    report.value("experts", "busiest_as_placed", placed);
    report.value("experts", "busiest_first", first);
    report.value("experts", "busiest_last", last);
    double expected = 0, counted = 0;
    const auto sums = size_t(Collective::all_reduce);
    for (const auto& [group, kinds] : of_step.groups)
        if (group.starts_with("copies")) expected += kinds[sums].sent;
    for (const auto& [group, kinds] : communication_counts().groups)
        if (group.starts_with("copies")) counted += kinds[sums].sent / double(steps.size());
    print(fmt::format("  gradients of copies: {} sent a step, {} predicted", format_bytes(counted),
                      format_bytes(expected)));
    report.value("experts", "copies_sent", counted);
    report.value("experts", "copies_predicted", expected);
}

}  // namespace ultrascale::expert_parallel
