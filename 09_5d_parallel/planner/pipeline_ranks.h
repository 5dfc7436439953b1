// --estimate --gpus: the memory of a rank, by its place in the pipeline.
#pragma once

#include "imagined.h"
#include "lab/report/report.h"

namespace ultrascale::five_d {

// The ranks to show: all of a short pipeline; of a long one the first three and the last two.
inline std::vector<int> pp_ranks_shown(int pp) {
    std::vector<int> ranks;
    for (int pp_rank = 0; pp_rank < pp; ++pp_rank)
        if (pp <= 8 || pp_rank < 3 || pp_rank >= pp - 2) ranks.push_back(pp_rank);
    return ranks;
}

// Prints them, which rank has the most, and why. The techniques are complete.
inline void print_pipeline_ranks(const Options& options, const StepShape& shape,
                                 const Techniques& techniques) {
    const Axes& axes = techniques.axes;
    const int ranks = axes.dp * axes.tp * axes.cp * axes.ep * axes.pp;
    const Schedule schedule = techniques.make_schedule(int(options.grad_accum));
    const std::vector<Stage> stages = cut(shape, schedule.stages, techniques.split);
    Report report("09_5d_parallel", options, shape, 0);
    print(fmt::format("{}, {:.2f} B parameters on {}", options.model_name(),
                      double(parameter_count(shape.config)) / 1e9, format_count(ranks, "rank")));
    print(fmt::format(
        "{}\n{} of {} tokens a step", describe(techniques),
        format_count(sequences_of_step(options, int64_t(axes.dp) * axes.ep), "sequence"),
        shape.seq));
    print("\nmemory of a rank, by its rank in the pipeline, in GiB");
    print("   rank layers         weights  grads states  activations: in flight  buffers     all");
    struct Row {
        int pp_rank;
        MemoryEstimate memory;
        double in_flight;
        bool embedding = false, head = false;
    };
    std::vector<Row> rows;
    for (const int pp_rank : pp_ranks_shown(axes.pp)) {
        Row row{pp_rank, predict_imagined(options, shape, techniques, pp_rank).memory,
                peak_in_flight(schedule, pp_rank)};
        int64_t layers = 0;
        for (const Chunk& chunk : schedule.chunks[size_t(pp_rank)]) {
            const Stage& stage = stages[size_t(chunk.stage)];
            layers += stage.last_layer - stage.first_layer;
            row.embedding = row.embedding || stage.embedding, row.head = row.head || stage.head;
        }
        const MemoryEstimate& m = row.memory;
        const auto gib = [](int64_t bytes) { return double(bytes) / double(1 << 30); };
        print(fmt::format(
            "  {:>5} {:>6}{:<10} {:>6.2f} {:>6.2f} {:>6.2f} {:>12.2f} {:>10.1f} "
            "{:>8.2f} {:>7.2f}",
            pp_rank, layers,
            row.embedding && row.head ? " + both"
            : row.embedding           ? " + embed"
            : row.head                ? " + head"
                                      : "",
            gib(m.parameters), gib(m.gradients), gib(m.optimizer), gib(m.peak_activations),
            row.in_flight, gib(m.peak_communication), gib(m.total())));
        report.row({{"table", "pipeline_ranks"},
                    {"pp_rank", int64_t(pp_rank)},
                    {"layers", layers},
                    {"parameters", m.parameters},
                    {"gradients", m.gradients},
                    {"optimizer", m.optimizer},
                    {"peak_activations", m.peak_activations},
                    {"peak_communication", m.peak_communication},
                    {"micro_batches_in_flight", row.in_flight},
                    {"total", m.total()}});
        rows.push_back(row);
    }
    const Row& worst =
        *std::ranges::max_element(rows, {}, [](const Row& row) { return row.memory.total(); });
    std::string why;
    const auto because = [&](bool holds, const std::string& words) {
        if (holds) why += (why.empty() ? "" : ", ") + words;
    };
    because(worst.in_flight > 1, fmt::format("{:.4g} micro-batches in flight", worst.in_flight));
    because(worst.embedding, "the embedding");
    because(worst.head, "the head and its logits");
    print(fmt::format("  most at rank {}{}{}", worst.pp_rank, why.empty() ? "" : ": it has ", why));
    if (const int64_t limit = memory_limit(); limit > 0)
        print(fmt::format("  a rank has {} here: it {}", format_bytes(double(limit)),
                          worst.memory.total() <= limit ? "fits" : "does not fit"));
    report.finish();
}

}  // namespace ultrascale::five_d
