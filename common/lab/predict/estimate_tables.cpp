// The tables of --estimate: predictions without measurements.
#include <algorithm>

#include "lab/report/report.h"
#include "lab/report/report_tables.h"

namespace ultrascale {
namespace {

using Kind = PredictedCommunication::Kind;

// The figures per step, from the prediction for a run of `steps` steps.
Json figures(const Kind& run_total, int64_t steps) {
    const double n = double(steps);
    return {{"predicted_calls", double(run_total.calls) / n},
            {"predicted_tensor_bytes", double(run_total.bytes) / n},
            {"predicted_sent_bytes", run_total.sent / n}};
}

Json rank_estimate(const Prediction& run_prediction, int64_t steps) {
    Json by_kind = Json::object(), by_group = Json::object();
    for (size_t k = 0; k < collective_kinds; ++k) {
        const char* const kind = collective_names[k];
        const Kind all = run_prediction.communication.of(Collective(k));
        if (all.calls > 0) by_kind[kind] = figures(all, steps);
        for (const auto& [group, kinds] : run_prediction.communication.groups)
            if (kinds[k].calls > 0) by_group[group][kind] = figures(kinds[k], steps);
    }
    return {{"limit", memory_limit()},
            {"memory", predicted_memory(run_prediction.memory)},
            {"communication", by_kind},
            {"communication_by_group", by_group}};
}

int64_t bytes_left(const Json& rank) {
    return rank["limit"].get<int64_t>() - rank["memory"]["peak"]["predicted"].get<int64_t>();
}

std::string bytes(const Json& number) { return format_bytes(number.get<double>()); }

void print_figures(const std::string& name, const Json& f, const std::string& group = "") {
    print(fmt::format("  {:<14} {:>6.5g} {:>10} {:>10}{}{}", name,
                      f["predicted_calls"].get<double>(), bytes(f["predicted_tensor_bytes"]),
                      bytes(f["predicted_sent_bytes"]), group.empty() ? "" : "   ", group));
}

void print_communication_of(const Json& rank) {
    if (rank["communication"].empty()) return print("\ncommunication: none");
    print("\ncommunication per step       predicted");
    print(fmt::format("{:16} {:>6} {:>10} {:>10}", "", "calls", "tensors", "sent"));
    for (const auto& [kind, all] : rank["communication"].items()) {
        std::vector<std::pair<std::string, Json>> groups;  // with such calls
        for (const auto& [group, kinds] : rank["communication_by_group"].items())
            if (kinds.contains(kind)) groups.emplace_back(group, kinds[kind]);
        print_figures(kind, all, groups.size() == 1 ? groups.front().first : "");
        if (groups.size() == 1) continue;
        for (const auto& [group, its] : groups) print_figures("  " + group, its);
    }
}

}  // namespace

Json print_estimate(const Prediction& run_prediction, int64_t steps, const Advice& advice) {
    std::vector<Json> ranks;
    for (const std::string& rank_json :
         Communicator::world().gather_strings(rank_estimate(run_prediction, steps).dump()))
        ranks.push_back(Json::parse(rank_json));
    const auto [least, most] = std::ranges::minmax_element(ranks, {}, bytes_left);
    const Json& worst = *least;
    const int64_t rank = least - ranks.begin();
    const bool fits = bytes_left(worst) >= 0;

    print(fmt::format("\nmemory per rank             predicted{}",
                      bytes_left(worst) == bytes_left(*most)
                          ? ""
                          : fmt::format("   (rank {}, which has the least left)", rank)));
    for (const auto& [category, category_json] : worst["memory"].items())
        print(fmt::format("  {:<20} {:>14}", category == "peak" ? "all, at most" : category,
                          bytes(category_json["predicted"])));
    print(fmt::format("  a rank has {} here: it {}", bytes(worst["limit"]),
                      fits ? "fits; the operations' workspace comes on top" : "does not fit"));
    if (!fits) {
        std::string lines = advice();  // one per clause
        for (size_t at; (at = lines.find("; ")) != std::string::npos;) lines.replace(at, 2, "\n  ");
        print("  " + lines);
    }
    print_communication_of(worst);

    Json by_rank = Json::array();
    for (const Json& rank_json : ranks) by_rank.push_back(rank_json["memory"]);
    return {{"memory", worst["memory"]},
            {"memory_by_rank", by_rank},
            {"communication", worst["communication"]},
            {"communication_by_group", worst["communication_by_group"]},
            {"estimate", {{"fits", fits}, {"limit_bytes", worst["limit"]}, {"rank", rank}}}};
}

}  // namespace ultrascale
