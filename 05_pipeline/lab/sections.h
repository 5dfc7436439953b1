// This chapter's own output: the header's line, the memory of all ranks side by side, the messages
// as the playbook counts them, and --estimate's report.
#pragma once

#include "bubbles.h"
#include "predict.h"
#include "train/run.h"

namespace ultrascale::pipeline {

// "1f1b: 4 stages of 2 layers on 4 ranks, 8 micro-batches".
inline std::string describe(const Schedule& schedule, const std::vector<Stage>& stages,
                            const RunAs& as = {}) {
    std::string layers;
    int64_t least = stages[0].last_layer, most = 0;
    for (const Stage& stage : stages) {
        const int64_t own = stage.last_layer - stage.first_layer;
        layers += fmt::format("{}{}", layers.empty() ? "" : ",", own);
        least = std::min(least, own), most = std::max(most, own);
    }
    if (least == most) layers = std::to_string(most);
    if (layers.size() > 12) layers = fmt::format("{} to {}", least, most);
    return fmt::format(
        "{}: {} of {} {} on {}{}, {}{}{}", schedule.name, format_count(schedule.stages, "stage"),
        layers, most == 1 ? "layer" : "layers", format_count(schedule.ranks(), "rank"),
        schedule.copies() > 1 ? ", twice" : "", format_count(schedule.micro_batches, "micro-batch"),
        as.post_validation ? "; post-validation" : "", as.pretend.on() ? "; pretended times" : "");
}

// Prints the ranks' peaks of activations by formula, and for how many micro-batches. Every rank can
// compute all of them.
inline void print_in_flight(Report& report, const Pipeline& pipeline) {
    print("\nrank  stages     micro-batches in flight   activations at most, by formula");
    for (int r = 0; r < pipeline.schedule.ranks(); ++r) {
        std::string held;
        for (const Chunk& chunk : pipeline.schedule.chunks[size_t(r)])
            held += fmt::format("{}{}", held.empty() ? "" : ", ", chunk.stage);
        const MemoryWalk walk = walk_memory(pipeline, r);
        print(fmt::format("{:>4}  {:<10} {:>23.4g}   {:>31}", r, held, walk.most_in_flight,
                          format_bytes(walk.peak)));
        report.row({{"table", "in_flight"},
                    {"rank", int64_t(r)},
                    {"micro_batches", walk.most_in_flight},
                    {"peak_activation_bytes", std::llround(walk.peak)}});
    }
}

// The playbook's appendix counts 4 gas seq mbs h elements for a rank with neighbours on both sides:
// what it sends and what it receives.
inline void print_messages(Report& report, const Pipeline& pipeline) {
    const StepShape& shape = pipeline.shape;
    const double tensor = message_bytes(shape),
                 by_formula = 4 * double(pipeline.schedule.micro_batches) * tensor;
    double most = 0;
    int rank = 0;
    for (int r = 0; r < pipeline.schedule.ranks(); ++r) {
        double both = 0;
        for (const Message& m : pipeline.plan.messages())
            if (!m.local()) both += ((m.from == r) + (m.to == r)) * tensor;
        if (both > most) most = both, rank = r;
    }
    if (most == 0) return;
    print(fmt::format(
        "  messages: rank {} sends and receives {} a step; 4 gas seq mbs h elements are {}", rank,
        format_bytes(most), format_bytes(by_formula)));
    report.value("messages", "most_bytes", most);
    report.value("messages", "by_formula_bytes", by_formula);
}

inline void print_repeated(Report& report, int64_t repeated, int64_t steps) {
    print(fmt::format("  post-validation: {} of {} repeated, because the norm had to be clipped{}",
                      repeated, format_count(steps, "update"),
                      repeated > 0 ? "\n  (the step simulated below repeats nothing)" : ""));
    report.value("post_validation", "repeated", double(repeated));
}

// Prints the chapter's part of a training's report. Returns false if memory or communication differ
// from their predictions. `repeated`: updates that post-validation repeated.
inline bool report_run(Report& report, const Pipeline& pipeline, const Options& options,
                       const RunAs& as, const CommunicationCounts& of_validation,
                       int64_t repeated) {
    const Prediction predicted = predict_run(pipeline, options.steps, as.post_validation);
    bool ok = report.memory(predicted);
    if (report.full()) print_in_flight(report, pipeline);
    ok = report.communication_of_run(predicted, options.steps, of_validation) && ok;
    if (as.post_validation) print_repeated(report, repeated, options.steps);
    print_messages(report, pipeline);
    if (pipeline.executor) report_time(report, pipeline, options, as);
    report.throughput(predicted);
    return ok;
}

inline std::string what_needs_less() {
    return "these would need less: more ranks in a pipeline (--pp), a smaller --micro-batch; "
           "--recompute full, or a schedule with fewer micro-batches in flight";
}

// --estimate: describes the rank's parameters without allocating anything.
inline void print_estimate(const Options& options, const StepShape& shape, const Schedule& schedule,
                           const std::vector<Stage>& stages, const RunAs& as) {
    Pipeline pipeline(shape, schedule, stages, as);
    Report report("05_pipeline", options, shape, 0);
    const int dp = pipeline.dp().size();
    report.configuration(sequences_of_step(options, dp), "", dp);
    report.technique("pipe", describe(schedule, stages), {{"pp", schedule.ranks()}, {"dp", dp}});
    report.estimate(predict_run(pipeline, 1, as.post_validation), 1, what_needs_less);
    print_messages(report, pipeline);
    print_in_flight(report, pipeline);
    report.finish();
}

}  // namespace ultrascale::pipeline
