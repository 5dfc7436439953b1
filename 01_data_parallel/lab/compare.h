// --compare: a few steps with each technique on the same data, and one table.
//
//   exposed   how long compute stalled for communication, in blocking calls or in waits
//   overlap   the share of the communication's time that was hidden under compute
//   matmul    the time of the matrix products, relative to a step without communication: overlap
//             slows them, because both share a GPU's multiprocessors and memory, or a CPU's cores
//
// Below the table: the playbook's condition (appendix "Math for compute/communication overlap").
// The gradients of Psi parameters, of b bytes each, are hidden if their all-reduce takes no longer
// than the backward:
//
//     t_comm / t_compute = (2 (n-1)/n * b Psi / bandwidth) / (4 * tokens * Psi / FLOP rate)  <=  1
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "../4_accumulation.h"
#include "lab/measure/measure.h"
#include "lab/report/median_seconds.h"
#include "pictures.h"
#include "syncs.h"
#include "train/run.h"

namespace ultrascale::data_parallel {

// The cost of a step with one technique: medians over the steps, of the slowest rank's times.
struct SyncCost {
    double step_seconds, backward_seconds, communication_seconds, exposed_seconds, matmul_seconds;
    double matmul_flops, sent_bytes;
    int64_t calls;
};

// main.cpp's train_step().
using SyncStep =
    std::function<void(Step&, Llama&, Updater&, GradientSync&, Accumulation&, const Communicator&)>;

inline SyncCost cost_of(GradientSync& sync, Llama& model, Updater& optimizer,
                        const DataLoader& loader, const Options& options, const Communicator& alone,
                        const SyncStep& train_step) {
    const Communicator& ranks = Communicator::world();
    Accumulation gradients(model.parameters(), sync);
    const DataSlice slice{options.micro_batch, ranks.size(), ranks.rank()};
    trace_record(true);
    const Measured m =
        measure(loader, slice, slice.micro_batch * slice.count, options.steps,
                [&](Step& step) { train_step(step, model, optimizer, sync, gradients, alone); });
    trace_record(false);
    SyncCost cost{.step_seconds = m.step_seconds,
                  .communication_seconds = m.communication_seconds,
                  .exposed_seconds = m.exposed_seconds,
                  .sent_bytes = m.sent_bytes};
    for (size_t k = 0; k < collective_kinds; ++k) cost.calls += m.counts[k].calls / m.steps;
    std::vector<double> backwards;
    for (const Span& span : trace_spans()) {
        if (span.name == "backward" && span.lane == "phase")
            backwards.push_back(span.end - span.begin);
        if (span.name != "matmul") continue;
        cost.matmul_seconds += (span.end - span.begin) / double(m.steps);
        cost.matmul_flops += span.flops / double(m.steps);
    }
    cost.backward_seconds = largest_of_ranks(ranks, median(backwards));
    cost.matmul_seconds = largest_of_ranks(ranks, cost.matmul_seconds);
    return cost;
}

// All ranks call it; rank 0 prints. Returns true.
inline bool compare_syncs(const Options& options, SyncOptions sync, const StepShape& shape,
                          bool nodes_pretended, const SyncStep& train_step) {
    const Communicator& ranks = Communicator::world();
    // Only the communication of gradients is measured, so each rank keeps its part of the loss.
    const Communicator loss_ranks = ranks.split(ranks.rank(), 0, "alone");
    slow_down(options);
    const TokenFile file(options.data_path(), shape.config.vocab);
    const DataLoader loader(file, data_options(options, shape));
    Llama model(shape.config, shape.model);
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(options.dtype);
    parameters.allocate_grads(options.grad_dtype(), ranks.symmetric_memory());
    PlainUpdater optimizer(parameters, options);
    optimizer.start();

    const int64_t n = ranks.size(), tokens = options.micro_batch * shape.seq;
    print(fmt::format(
        "{}, {:.3f} M parameters, {} of gradients, {} x {} tokens a rank; medians in ms",
        format_count(n, "rank"), double(parameters.local_numel()) / 1e6,
        format_bytes(double(parameters.flat_grads().bytes())), options.micro_batch, shape.seq));
    print(fmt::format("  {:<24} {:>8} {:>10} {:>6} {:>11} {:>8} {:>8} {:>7} {:>7}", "technique",
                      "step", "tok/s/rank", "calls", "sent", "comm.", "exposed", "overlap",
                      "matmul"));
    Report report("01_data_parallel", options, shape, 0);
    Timelines timelines;
    const Mesh mesh(ranks, {{"dp", ranks.size()}});
    NoSync none(parameters, mesh);
    const SyncCost alone = cost_of(none, model, optimizer, loader, options, loss_ranks, train_step);
    SyncCost naive{};
    const auto row = [&](const std::string& name, const SyncCost& cost) {
        const bool talks = cost.calls > 0;
        const double overlap =
            talks ? std::max(0.0, 1 - cost.exposed_seconds / cost.communication_seconds) : 0;
        const auto ms = [&](double seconds) {
            return talks ? fmt::format("{:.2f}", seconds * 1e3) : "-";
        };
        print(fmt::format("  {:<24} {:>8.2f} {:>10.0f} {:>6} {:>11} {:>8} {:>8} {:>7} {:>6.2f}x",
                          name, cost.step_seconds * 1e3, double(tokens) / cost.step_seconds,
                          cost.calls, format_bytes(cost.sent_bytes), ms(cost.communication_seconds),
                          ms(cost.exposed_seconds),
                          talks ? fmt::format("{:.0f} %", 100 * overlap) : "-",
                          cost.matmul_seconds / alone.matmul_seconds));
        report.row({{"technique", name},
                    {"step_ms", cost.step_seconds * 1e3},
                    {"tokens_per_second_per_device", double(tokens) / cost.step_seconds},
                    {"calls", cost.calls},
                    {"sent_bytes", cost.sent_bytes},
                    {"communication_ms", cost.communication_seconds * 1e3},
                    {"exposed_ms", cost.exposed_seconds * 1e3},
                    {"overlap", overlap},
                    {"matmul_ratio", cost.matmul_seconds / alone.matmul_seconds}});
    };
    row("no communication (wrong)", alone);
    const auto measure = [&](const std::string& name, SyncKind kind,
                             RingDirections directions = RingDirections::one) {
        sync.kind = kind, sync.ring_directions = directions;
        const SyncCost cost = cost_of(*make_sync(sync, parameters, mesh, options.grad_dtype()),
                                      model, optimizer, loader, options, loss_ranks, train_step);
        if (kind == SyncKind::naive) naive = cost;
        row(name, cost);
        if (draws(options.svg) && n > 1 && kind <= SyncKind::bucket)
            timelines.add(kind, name, cost.step_seconds, cost.exposed_seconds);
    };
    measure("naive", SyncKind::naive);
    measure("overlap", SyncKind::overlap);
    measure(fmt::format("bucket, {:.4g} MiB", sync.bucket_mb), SyncKind::bucket);
    measure("ring", SyncKind::ring);
    measure("ring, both ways", SyncKind::ring, RingDirections::both);
    measure(fmt::format("tree, {}", format_count(sync.tree_chunks, "chunk")), SyncKind::tree);
    if (nodes_pretended)
        measure(fmt::format("hierarchical, nodes of {}", sync.nodes.ranks), SyncKind::hierarchical);
    if (draws(options.svg) && n > 1) timelines.draw(options.svg);
    if (n == 1) return report.finish(), true;

    // The condition, with the bandwidth of one all-reduce of all gradients, and the FLOP rate of
    // the matrix products when nothing is communicated.
    const double seconds = measure_call(ranks, [&] { ranks.all_reduce(parameters.flat_grads()); });
    const double moved = 2 * double(n - 1) / double(n) * double(parameters.flat_grads().bytes());
    const double bandwidth = moved / seconds, rate = alone.matmul_flops / alone.matmul_seconds;
    const double t_comm = moved / bandwidth,
                 t_compute = 4 * double(tokens) * double(parameters.local_numel()) / rate;
    print(
        fmt::format("\noverlap condition: busbw {:.4g} GB/s (one all-reduce of all), {:.4g} "
                    "TFLOP/s (matrix products)",
                    bandwidth / 1e9, rate / 1e12));
    print(fmt::format("  predicted  t_comm {:>9.2f} ms   t_backward {:>9.2f} ms   ratio {:.2f}{}",
                      t_comm * 1e3, t_compute * 1e3, t_comm / t_compute,
                      t_comm <= t_compute ? ": it can be hidden" : ": it cannot be hidden"));
    print(
        fmt::format("  measured   t_comm {:>9.2f} ms   t_backward {:>9.2f} ms   ratio {:.2f}   "
                    "(naive; no comm.)",
                    naive.communication_seconds * 1e3, alone.backward_seconds * 1e3,
                    naive.communication_seconds / alone.backward_seconds));
    report.value("overlap_condition", "predicted", t_comm / t_compute);
    report.value("overlap_condition", "measured",
                 naive.communication_seconds / alone.backward_seconds);
    report.finish();
    return true;
}

}  // namespace ultrascale::data_parallel
