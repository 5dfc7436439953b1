// This chapter's part of the report: the experts' loads and the cost of uneven ones, expected and
// actual all-to-alls; --estimate's report; and the plain layers of --verify.
#pragma once

#include <set>

#include "choices.h"
#include "expert_run.h"
#include "load_picture.h"
#include "one_device_experts.h"
#include "placement_report.h"

namespace ultrascale::expert_parallel {

// "64 experts, top 6, softmax, 2 shared"
inline std::string describe_model(const ExpertsConfig& e) {
    std::string words =
        fmt::format("{}, top {}, {}", format_count(e.count, "expert"), e.router.top_k,
                    e.router.score == ops::RouterScore::softmax ? "softmax" : "sigmoid");
    if (e.router.groups > 1)
        words += fmt::format(", {} of {} groups", e.router.top_groups, e.router.groups);
    if (e.shared > 0) words += fmt::format(", {} shared", e.shared);
    if (e.first_dense > 0) words += fmt::format("; the first {} dense", e.first_dense);
    return words;
}

// "8 experts, top 2, softmax; ep 4 x dp 2: 2 experts a rank; auxiliary loss hf 0.01"
inline std::string describe(const LlamaConfig& config, const ExpertOptions& o, int64_t ranks) {
    std::string words =
        fmt::format("{}\n          ep {} x dp {}: {} a rank", describe_model(config.experts), o.ep,
                    ranks / o.ep, format_count(o.slots(config.experts) / o.ep, "expert"));
    if (o.placed()) words += fmt::format(", by load, {}", format_count(o.replicas, "replica"));
    if (o.ep > 1)
        words += fmt::format(", one copy of a row for each {}", dispatch_names[int(o.dispatch)]);
    if (o.fp8_rows()) words += fmt::format(" in {}", dispatch_dtype_names[int(o.dispatch_dtype)]);
    if (o.chunks_here() > 1) words += fmt::format(", in {} chunks", o.chunks);
    if (o.max_nodes > 0) words += fmt::format(", at most {}", format_count(o.max_nodes, "node"));
    std::string more;
    if (o.has_loss())
        more += fmt::format("; auxiliary loss {} {:g} over {}", aux_names[int(o.aux)],
                            o.aux_coefficient,
                            o.aux_over == AuxOver::global ? "the step" : "each micro-batch");
    if (o.gamma > 0) more += fmt::format("; bias moved by {:g}", o.gamma);
    if (o.z_coefficient > 0) more += fmt::format("; z-loss {:g}", o.z_coefficient);
    if (o.capacity_factor > 0) more += fmt::format("; capacity {:g} x the mean", o.capacity_factor);
    if (o.skew > 0)
        more += fmt::format("; forced, {:.0f} % to expert 0 first", 100 * o.skew);
    else if (o.force_balance)
        more += "; forced into balance";
    return more.empty() ? words : words + "\n          " + more.substr(2);
}

inline void report_loads(Report& report, const StepShape& shape,
                         const std::vector<StepLoads>& loads) {
    const int64_t E = shape.config.experts.count, shown = std::min<int64_t>(E, 8);
    print(
        "\nload of the experts, over the mean load: of all layers the largest and the smallest; "
        "of");
    print("the first one with experts, by expert");
    std::string title = fmt::format("  {:>6} {:>8} {:>8}", "step", "largest", "smallest");
    for (int64_t e = 0; e < shown; ++e) title += fmt::format(" {:>6}", fmt::format("e{}", e));
    print(title + (shown < E ? " ..." : ""));
    const size_t n = loads.size();
    for (size_t i : std::set<size_t>{0, n / 4, n / 2, 3 * n / 4, n - 1}) {
        double most = 0, least = INFINITY;
        std::vector<double> first;
        for (const std::vector<float>& load : loads[i].by_layer) {
            double mean = 0;
            for (float count : load) mean += double(count) / double(E);
            for (float count : load) {
                most = std::max(most, double(count) / mean);
                least = std::min(least, double(count) / mean);
                if (&load == &loads[i].by_layer.front()) first.push_back(double(count) / mean);
            }
        }
        std::string line = fmt::format("  {:>6} {:>8.2f} {:>8.2f}", i + 1, most, least);
        for (int64_t e = 0; e < shown; ++e) line += fmt::format(" {:>6.2f}", first[size_t(e)]);
        print(line);
    }
    report.value("experts", "imbalance", loads.back().imbalance());
}

inline void report_experts(Report& report, const Options& options, const StepShape& shape,
                           const ExpertOptions& o, const ExpertRun& seen,
                           const Prediction& balanced) {
    if (seen.loads().empty()) return;
    const LlamaConfig& config = shape.config;
    const double total = double(parameter_count(config)),
                 active = double(active_parameter_count(config));
    report_loads(report, shape, seen.loads());
    if (Communicator::world().rank() == 0) draw_loads(options.svg, seen.loads());
    const StepLoads& last = seen.loads().back();
    print(fmt::format("  {:.3f} M parameters, of which a token uses {:.3f} M ({:.0f} %)",
                      total / 1e6, active / 1e6, 100 * active / total));
    report.value("experts", "parameters", total);
    report.value("experts", "active_parameters", active);
    if (o.has_loss()) {
        const double even = o.aux == Aux::hf || o.aux == Aux::switch_transformer
                                ? double(config.experts.router.top_k)
                                : 1;
        print(fmt::format(
            "  auxiliary (load-balancing) loss {:.4f} ({} {:g} if all loads are equal), not in the "
            "loss above",
            last.aux, aux_names[int(o.aux)], even));
        report.value("experts", "aux_loss", last.aux);
    }
    if (o.z_coefficient > 0) {
        print(fmt::format("  z-loss {:.4f} a layer, not in the loss above", last.z));
        report.value("experts", "z_loss", last.z);
    }
    report.value("experts", "most_rows", double(seen.most_rows()));
    report.value("experts", "mean_rows", seen.mean_rows());
    const double even = seen.even_rows(),
                 most = largest_of_ranks(Communicator::world(), double(seen.most_rows()));
    print(
        fmt::format("  rows of a rank's experts in a forward: {:.0f} if even, here at most {}, on "
                    "any rank {:.0f}",
                    even, seen.most_rows(), most));
    print(fmt::format(
        "  The others wait for the rank with the most: {:.2f} times the work of an even "
        "load",
        most / even));
    if (o.capacity_factor > 0) {
        const ExpertRun::Dropped& here = seen.dropped();
        print(fmt::format("  dropped: {} of {} choices here ({:.1f} %)", here.dropped, here.choices,
                          100 * double(here.dropped) / double(here.choices)));
        report.value("experts", "dropped", double(here.dropped));
        report.value("experts", "choices", double(here.choices));
    }
    if (o.fp8_rows()) {
        print(fmt::format("  rows in fp8 in step 1: off by {:.4f} of their length, at most {:.4f}",
                          seen.rounding().mean(), seen.rounding().largest));
        report.value("experts", "fp8_error", seen.rounding().mean());
        report.value("experts", "largest_fp8_error", seen.rounding().largest);
    }
    if (o.placed()) report_placement(report, o, seen, balanced.communication);
    if (o.ep == 1) return;
    const double steps = double(options.steps),
                 expected = balanced.communication.of(Collective::all_to_all).sent,
                 exact = seen.travelled().of(Collective::all_to_all).sent / steps,
                 counted = communication_counts()[size_t(Collective::all_to_all)].sent / steps;
    print(fmt::format("  all-to-alls send a step: {}{} for the rows that came, {} counted",
                      o.max_nodes > 0 ? "" : format_bytes(expected) + " expected, ",
                      format_bytes(exact), format_bytes(counted)));
    if (o.node_size > 0) {
        const double between = seen.statistics().between_nodes() / steps,
                     inside = seen.statistics().inside_nodes() / steps;
        const double rate = options.inter_gbps;
        print(fmt::format(
            "  of which between nodes {}{}, inside {}", format_bytes(between),
            rate > 0 ? fmt::format(" ({:.1f} ms at {:g} Gbit/s)", between * 8e-6 / rate, rate) : "",
            format_bytes(inside)));
        report.value("all_to_all", "between_nodes", between);
        report.value("all_to_all", "inside_nodes", inside);
    }
    report.value("all_to_all", "expected", expected);
    report.value("all_to_all", "exact", exact);
    report.value("all_to_all", "counted", counted);
}

// --estimate: describes the rank's parameters without allocating anything.
inline void print_estimate(const Options& options, const ExpertOptions& o, const StepShape& shape) {
    const Communicator& world = Communicator::world();
    Mesh mesh(world, {{"dp", world.size() / o.ep}, {"ep", o.ep}});
    ExpertParallel experts(shape.config, o, mesh, options.grad_accum);
    add_holders(mesh, experts.placements());
    Llama model(shape.config, shape.model, experts.factories(shape.model),
                Stage::whole(shape.config));
    Report report("06_expert_parallel", options, shape, 0);
    report.configuration(sequences_of_step(options, world.size()), "", world.size());
    report.technique("experts", describe(shape.config, o, world.size()),
                     {{"ep", o.ep}, {"dp", world.size() / o.ep}});
    report.estimate(
        predict_balanced(shape, o, model.parameters(), mesh, experts.balance(), options.grad_accum),
        1, [] { return "fewer layers, a smaller --micro-batch or a larger --ep would fit"; });
    print("  Rows are predicted for a balanced router; the report of a run has those that came.");
    report.finish();
}

}  // namespace ultrascale::expert_parallel
