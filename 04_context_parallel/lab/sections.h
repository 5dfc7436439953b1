// The parts of the report that only this chapter has: the longest sequence that fits, by the number
// of ranks that share it (longest.h); why recomputation alone is not enough; what ranks send on
// average and at most, if they differ; and --estimate's report.
#pragma once

#include <algorithm>
#include <numeric>
#include <set>

#include "document_counts.h"
#include "lab/measure/layer_communication.h"
#include "lab/verify/whole_values.h"
#include "longest.h"
#include "overlap_condition.h"
#include "train/run.h"

namespace ultrascale::context_parallel {

// Names what the rows of a table share: "--variant ring --layout zigzag". Options for one rank name
// no variant; with more ranks it is the default.
inline std::string way_of(const StepShape& shape, const ContextOptions& given) {
    const ContextOptions o = given.cp == 1 ? ContextOptions{} : given;
    std::string way = fmt::format("--variant {} --layout {}", variant_names[int(o.variant)],
                                  layout_names[int(o.layout)]);
    if (o.variant == Variant::usp) way += fmt::format(" --ulysses {}", o.ulysses);
    if (o.bidirectional) way += " --bidirectional on";
    if (shape.model.loss_chunk > 0) way += fmt::format(" --loss-chunk {}", shape.model.loss_chunk);
    return way;
}

// Returns the bytes of parameters, gradients and optimizer states, which no length or cp changes.
inline int64_t fixed_bytes(const StepShape& shape) {
    Prediction prediction;
    add_parameters(prediction, parameter_count(shape.config), shape);
    return prediction.memory.total();
}

// Returns the bytes of the layers' inputs, which full recomputation keeps.
inline double layer_inputs(const StepShape& shape, const ContextOptions& o) {
    return double(shape.micro_batch) * double(shape.config.layers) * double(shape.seq) / o.cp *
           double(shape.config.hidden) * double(dtype_bytes(shape.model.dtype));
}

// Reports the longest sequence for the given options, and prints it for 1, 2, 4, ... ranks that
// share it, with each recomputation.
inline void print_longest(Report& report, StepShape shape, const ContextOptions& o, int64_t limit) {
    report.value("fits", "longest_sequence", double(longest_sequence(shape, o, limit)));
    // Selective recomputation drops the scores, which only naive attention keeps.
    const bool flash = shape.model.attention == AttentionKind::flash;
    std::vector<Recompute> columns{Recompute::none, Recompute::selective, Recompute::full};
    if (flash) columns.erase(columns.begin() + 1);
    std::string header = "  ranks that share it ";
    for (const Recompute& recompute : columns)
        header += fmt::format(" {:>21}", fmt::format("--recompute {}", recompute.text()));

    bool all_can = true;
    int64_t longest = 0;
    std::vector<std::string> lines;
    for (int cp = 1; cp <= most_ranks; cp *= 2) {
        const auto with = with_ranks(shape, o, cp);
        std::string line = fmt::format("  --cp {:<15}", cp);
        for (const Recompute& recompute : columns) {
            shape.model.recompute = recompute;
            const int64_t seq = with ? longest_sequence(shape, *with, limit) : 0;
            line += fmt::format(" {:>21}", with ? std::to_string(seq) : "-");
            longest = std::max(longest, seq);
            if (with)
                report.row({{"table", "longest"},
                            {"cp", int64_t(cp)},
                            {"recompute", recompute.text()},
                            {"longest_sequence", seq}});
        }
        lines.push_back(line);
        all_can = all_can && with;
    }

    print(fmt::format("\nlongest sequence on devices of {}, by formula",
                      format_bytes(double(limit))));
    if (const int64_t fixed = fixed_bytes(shape); fixed >= limit)
        return print(fmt::format("  none: parameters, gradients and optimizer take {} at every cp",
                                 format_bytes(double(fixed))));
    print(header);
    for (const std::string& line : lines) print(line);
    if (flash) {
        print("  with " + way_of(shape, o));
        print("  --recompute selective is like none: flash attention keeps no scores to drop");
    }
    if (!all_can)
        print(flash ? "  -: so many ranks cannot share this model's heads"
                    : "  -: ranks share a sequence with --attention flash only");
    if (longest > shape.config.max_positions)
        print(fmt::format("  the model's configuration names {} positions; --seq may be longer",
                          shape.config.max_positions));
    if (longest > most_positions - 2 * most_ranks)
        print("  there is memory for more, but positions are 32-bit numbers");
}

// Shows why context parallelism is needed: full recomputation still keeps b L s h elements, the
// layers' inputs. Prints them for growing lengths, on a device alone and with the given cp.
inline void print_inputs(Report& report, StepShape shape, const ContextOptions& o, int64_t limit) {
    std::set<int64_t> lengths;
    for (int64_t seq = 4096; seq <= 1 << 20; seq *= 4) lengths.insert(seq);
    lengths.insert(shape.seq);
    std::vector<ContextOptions> columns{*with_ranks(shape, o, 1)};
    if (o.cp > 1) columns.push_back(o);
    shape.model.recompute = Recompute::full;

    print("\nwith --recompute full a device still keeps the layers' inputs, b L s h elements");
    std::string title = "            ", names = "         seq";
    for (const ContextOptions& with : columns) {
        title += fmt::format("{:>10}{:33}", fmt::format("--cp {}", with.cp), "");
        names += fmt::format("{:>12} {:>10} {:>10} {:8}", "inputs", "others", "in all", "");
    }
    print(title.substr(0, title.find_last_not_of(' ') + 1));
    print(names.substr(0, names.find_last_not_of(' ') + 1));
    for (int64_t length : lengths) {
        const int64_t multiple = sequence_multiple(o);
        shape.seq = (length + multiple - 1) / multiple * multiple;
        std::string line = fmt::format("  {:>10}", shape.seq);
        for (const ContextOptions& with : columns) {
            const int64_t all = largest_memory(shape, with).total();
            const double inputs = std::min(layer_inputs(shape, with), 9e18),  // as for totals
                others = std::max(double(all - fixed_bytes(shape)) - inputs, 0.0);
            line += fmt::format("{:>12} {:>10} {:>10} {:<8}", format_bytes(inputs),
                                format_bytes(others), format_bytes(double(all)),
                                all <= limit ? "fits" : "too much");
            report.row({{"table", "inputs"},
                        {"cp", int64_t(with.cp)},
                        {"seq", shape.seq},
                        {"input_bytes", std::llround(inputs)},
                        {"other_bytes", std::llround(others)},
                        {"total_bytes", all},
                        {"fits", all <= limit}});
        }
        print(line.substr(0, line.find_last_not_of(' ') + 1));
    }
    print("  others: what else is held at the peak, activations and what came from other ranks");
    print(fmt::format("  in all: with {} of parameters, gradients and optimizer; a device has {}",
                      format_bytes(double(fixed_bytes(shape))), format_bytes(double(limit))));
}

// The report shows what rank 0 sends. In a bidirectional ring, or with documents, other ranks send
// more or less; then this adds the mean and the most. All ranks call it.
inline void report_other_ranks(Report& report, const Prediction& run_prediction, int64_t steps) {
    const Communicator& world = Communicator::world();
    const double mine = run_prediction.communication.of(Collective::send_recv).sent / double(steps);
    std::vector<double> sent;  // by each rank
    for (const std::string& rank_sent : world.gather_strings(bytes_of<double>({mine})))
        sent.push_back(from_bytes<double>(rank_sent)[0]);
    const double mean = std::reduce(sent.begin(), sent.end()) / world.size(),
                 most = std::ranges::max(sent);
    if (most - mean < 1) return;
    print(
        fmt::format("  These are rank 0's. With send/recv a rank sends {} on average, and {} at "
                    "most.",
                    format_bytes(mean), format_bytes(most)));
    std::string by_rank;
    for (const double rank_sent : sent)
        by_rank += (by_rank.empty() ? "" : ", ") + format_bytes(rank_sent);
    if (world.size() <= 8) print("  By rank: " + by_rank);
    report.value("send_recv_sent", "mean", mean);
    report.value("send_recv_sent", "most", most);
}

// Watches a training, and prints the report about it.
class Sections {
public:
    Sections(const StepShape& shape, const ContextOptions& context, ContextParallel& parallel)
        : shape_(shape),
          context_(context),
          parallel_(parallel),
          documents_(shape, context, parallel) {}

    std::vector<Hooks*> watch() { return {&documents_, &layers_}; }

    // `predicted`: for all steps, without documents. Returns false if memory or communication is
    // not as predicted.
    bool print(Report& report, const Run& run, Prediction predicted, int64_t steps) {
        documents_.correct(predicted);
        bool ok = report.memory(predicted);
        if (report.full()) print_longest(report, shape_, context_, memory_limit());
        ok = report.communication_of_run(predicted, steps, run.validation_communication()) && ok;
        if (context_.cp > 1) layers_.add_to(report);
        report_other_ranks(report, predicted, steps);
        documents_.print_balance(report);
        if (report.full() && parallel_.has_ring())
            OverlapCondition(parallel_, shape_).print_table(report);
        report.throughput(predicted);
        return ok;
    }

private:
    const StepShape& shape_;
    const ContextOptions& context_;
    ContextParallel& parallel_;
    DocumentCounts documents_;
    LayerCommunication layers_;
};

// --estimate: the rank's parameters are only described; nothing is allocated.
inline void print_estimate(const Options& options, const ContextOptions& context,
                           const StepShape& shape) {
    const Communicator& world = Communicator::world();
    const int64_t limit = memory_limit();
    const Mesh mesh(world, {{"dp", world.size() / context.cp}, {"cp", context.cp}});
    const Communicator &dp = mesh.group("dp"), &cp = mesh.group("cp");
    Llama model(shape.config, shape.model);  // its weights are whole on every rank
    Report report("04_context_parallel", options, shape, 0);
    report.configuration(sequences_of_step(options, dp.size()), "", dp.size());
    report.technique("context", describe(context, dp.size()),
                     {{"cp", context.cp}, {"dp", dp.size()}});
    const Prediction prediction =
        predict(shape, context, model.parameters(), options.grad_accum, mesh.group({"dp", "cp"}),
                cp.rank() / context.ulysses_degree());
    report.estimate(prediction, 1, [&] { return what_needs_less(shape, context, limit); });
    report_other_ranks(report, prediction, 1);
    if (options.document_token >= 0 && context.cp > 1 && context.has_ring())
        print("  With documents the ring carries less; how much less depends on the data.");
    print_inputs(report, shape, context, limit);
    print_longest(report, shape, context, limit);
    report.finish();
}

}  // namespace ultrascale::context_parallel
