#include "rank_times.h"

#include <algorithm>

#include "core/trace.h"
#include "median_seconds.h"
#include "report.h"

namespace ultrascale {
namespace {

// The phase to which a span's time is added, or "".
std::string phase_of(const Span& span) {
    if (span.lane == "compute") return span.ranks > 0 ? "blocked" : "operations";
    if (span.lane != "phase" || span.name == "micro-batch") return "";
    // A pipeline's "F3" and "D2b" belong to all of its F and D.
    const bool action =
        span.name.size() > 1 && std::isdigit(static_cast<unsigned char>(span.name[1]));
    return action ? span.name.substr(0, 1) : span.name;  // empty for the units of a model
}

// The milliseconds of each phase in each step.
std::vector<std::map<std::string, double>> milliseconds(const std::vector<RankStep>& steps) {
    std::vector<std::map<std::string, double>> sums(steps.size());
    for (const Span& span : trace_spans()) {
        const std::string phase = phase_of(span);
        if (phase.empty()) continue;
        const auto at = std::ranges::lower_bound(steps, span.begin, {}, &RankStep::end);
        if (at != steps.end())
            sums[size_t(at - steps.begin())][phase] += 1e3 * (span.end - span.begin);
    }
    for (auto& phases : sums)
        phases["idle"] = phases["step"] - phases["operations"] - phases["blocked"];
    return sums;
}

}  // namespace

RankTimes rank_times(const std::vector<RankStep>& steps, int64_t warmup, int64_t group) {
    const Communicator& world = Communicator::world();
    Json mine = {{"group", group}, {"steps", Json::array()}};
    const auto sums = milliseconds(steps);
    for (size_t i = 0; i < steps.size(); ++i)
        mine["steps"].push_back({{"step", steps[i].step},
                                 {"rank", world.rank()},
                                 {"held_bytes", steps[i].held_bytes},
                                 {"ms", sums[i]}});
    RankTimes times{{}, Json::array()};
    std::vector<int64_t> groups;
    for (const std::string& text : world.gather_strings(mine.dump())) {
        const Json rank = Json::parse(text);
        std::map<std::string, std::vector<double>> after_warmup;
        groups.push_back(rank["group"]);
        for (const Json& line : rank["steps"]) {
            times.lines.push_back(line);
            for (const auto& [phase, ms] : line["ms"].items())
                if (line["step"] >= steps.front().step + warmup) after_warmup[phase].push_back(ms);
        }
        Json& phases = times.by_rank.emplace_back(Json::object());
        for (const auto& [phase, values] : after_warmup) phases[phase]["ms"] = median(values);
    }
    for (size_t rank = 0; rank < groups.size(); ++rank)
        for (auto& [phase, value] : times.by_rank[rank].items()) {
            std::vector<double> of_group;
            for (size_t other = 0; other < groups.size(); ++other)
                if (groups[other] == groups[rank] && times.by_rank[other].contains(phase))
                    of_group.push_back(times.by_rank[other][phase]["ms"]);
            value["group_ms"] = median(of_group);
        }
    return times;
}

void print_rank_times(const Json& by_rank) {
    std::map<std::string, std::pair<double, size_t>> worst;  // the most above the median, and whose
    for (size_t rank = 0; rank < by_rank.size(); ++rank)
        for (const auto& [phase, value] : by_rank[rank].items()) {
            const double above = value["ms"].get<double>() - value["group_ms"].get<double>();
            const auto [at, is_new] = worst.try_emplace(phase, above, rank);
            if (above > at->second.first) at->second = {above, rank};
        }
    print("\nms a step                  median of a group   most on a rank");
    for (const auto& [phase, found] : worst) {
        const Json& value = by_rank[found.second][phase];
        print(fmt::format("  {:<24} {:>17.2f} {:>16.2f}   rank {}", phase,
                          value["group_ms"].get<double>(), value["ms"].get<double>(),
                          found.second));
    }
    print(
        "  (a rank whose operations hold up others has the most of them, and the least idle time)");
}

}  // namespace ultrascale
