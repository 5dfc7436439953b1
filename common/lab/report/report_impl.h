// Private to the report's files: what a Report holds.
#pragma once

#include <algorithm>

#include "core/trace.h"
#include "lab/page/page.h"
#include "lab/page/trace_file.h"
#include "median_seconds.h"
#include "rank_times.h"
#include "report.h"
#include "report_tables.h"
#include "settings_of_run.h"

namespace ultrascale {

struct Report::Impl {
    std::string chapter;
    Options options;
    StepShape shape;
    int64_t total_steps;
    JsonLines json{options.json, !options.html.empty()};
    Json summary = Json::object();
    std::vector<StepRecord> records;
    std::vector<RankStep> rank_steps;
    int64_t group_of_times = 0;
    double first_step_end = 0;
    int64_t timed_from = 0;  // the steps before it are warm-up, with this communication
    CommunicationCounts in_warmup{};
    std::optional<double> best_validation;
    int64_t best_validation_step = 0;
    int64_t checkpoint_copies = 0;  // predicted, in bytes

    std::optional<MemorySettings> formulas;

    double page_since = 0, page_until = 0;  // what --html's timeline shows, in seconds

    // --html records only two steps: all steps of a long run would be too much for a page.
    void record_for_page(bool on) {
        if (options.html.empty() || on == (page_since > 0 && page_until == 0)) return;
        (on ? page_since : page_until) = now_seconds();
        if (options.trace.empty()) memory_timeline_record(on);
        if (options.trace.empty() && !options.profile) trace_record(on);
    }
    static int64_t warmup(int64_t steps) { return std::min<int64_t>(3, steps - 1); }
    // The median over the steps after warm-up of f(record).
    template <class F>
    double median(F f) const {
        std::vector<double> values;
        for (size_t i = size_t(warmup(int64_t(records.size()))); i < records.size(); ++i)
            values.push_back(f(records[i]));
        return ultrascale::median(std::move(values));
    }
};

}  // namespace ultrascale
