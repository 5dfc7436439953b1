// The planner's modes that are about ranks: --calibrate measures those that run, --estimate --gpus
// and --rehearse imagine others.
#include "files/file.h"
#include "planner/asked.h"
#include "planner/calibrate.h"
#include "planner/imagined.h"
#include "planner/options.h"
#include "report/report.h"
#include "train/run.h"

namespace ultrascale {

bool write_calibration(const PlannerOptions& given, const Options& options,
                       const std::function<void()>& train) {
    const Communicator& world = Communicator::world();
    AtomicFile(given.calibrate);  // fails now rather than after seconds of measuring
    if (options.node_size > 0) pretend_nodes(options.node_size, options.inter_gbps);
    Hardware h = Calibration(options.dtype).measure();
    if (!device_is_gpu()) train();
    h.process = largest_of_ranks(world, process_besides_tensors());
    print(fmt::format("{} in {}, measured at the same time", format_count(world.size(), "rank"),
                      dtype_name(options.dtype)));
    print(
        fmt::format("  large products     {:.4g} TFLOP/s; half of that at {:.0f} rows and columns",
                    h.peak * h.product_share / 1e12, h.product_half / (std::cbrt(2.0) - 1)));
    print(fmt::format("  attention          {:.4g} TFLOP/s forward, {:.4g} backward",
                      h.peak * h.attention_forward / 1e12, h.peak * h.attention_backward / 1e12));
    print(fmt::format("  memory             {:.4g} GB/s; any call costs {:.1f} us",
                      h.memory_rate / 1e9, h.operation * 1e6));
    print(fmt::format("  links in a node    {:.4g} GB/s and {:.1f} us a hop, {} a node",
                      h.inside.bytes_per_second / 1e9, h.inside.latency * 1e6,
                      format_count(h.nodes.ranks, "rank")));
    print(fmt::format("  links beyond       {:.4g} GB/s and {:.1f} us a hop",
                      h.between.bytes_per_second / 1e9, h.between.latency * 1e6));
    print(fmt::format(
        "  products take longer, for each ms of an all-gather beside them, by {:.2f} ms",
        h.between.collective_slows));
    if (world.rank() == 0) write_file(given.calibrate, json_of(h).dump(2) + "\n");
    print("written to " + given.calibrate);
    return true;
}

Rehearsed rehearsed_rank(const std::string& text) {
    Rehearsed of{-1, 0};
    char end = 0;
    if (std::sscanf(text.c_str(), "%d/%d%c", &of.rank, &of.ranks, &end) != 2 || of.ranks < 1 ||
        of.ranks > 1 << 24 || of.rank < 0 || of.rank >= of.ranks)
        user_error("--rehearse {}: give a rank and the number of ranks, like 17/6144", text);
    return of;
}

void imagine_hardware(const PlannerOptions& given, const Options& options, const Axes& axes) {
    imagine_links([links = asked_hardware(given, options).links(), axes](
                      const std::string& group, Collective kind, double bytes, int ranks) {
        return links.call(kind, bytes, spread_of(group, ranks, axes, links.nodes));
    });
}

void print_places(const Options& options, const StepShape& shape, const Techniques& techniques) {
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
    print("\nmemory of a rank, by its place in the pipeline, in GiB");
    print("  place layers         weights  grads states  activations: in flight  buffers     all");
    struct Row {
        int place;
        MemoryEstimate memory;
        double in_flight;
        bool embedding = false, head = false;
    };
    std::vector<Row> rows;
    for (const int place : places_shown(axes.pp)) {
        Row row{place, predict_imagined(options, shape, techniques, place).memory,
                peak_in_flight(schedule, place, true)};
        int64_t layers = 0;
        for (const Chunk& chunk : schedule.chunks[size_t(place)]) {
            const Stage& stage = stages[size_t(chunk.stage)];
            layers += stage.last_layer - stage.first_layer;
            row.embedding = row.embedding || stage.embedding, row.head = row.head || stage.head;
        }
        const MemoryEstimate& m = row.memory;
        const auto gib = [](int64_t bytes) { return double(bytes) / double(1 << 30); };
        print(fmt::format(
            "  {:>5} {:>6}{:<10} {:>6.2f} {:>6.2f} {:>6.2f} {:>12.2f} {:>10.1f} "
            "{:>8.2f} {:>7.2f}",
            place, layers,
            row.embedding && row.head ? " + both"
            : row.embedding           ? " + embed"
            : row.head                ? " + head"
                                      : "",
            gib(m.parameters), gib(m.gradients), gib(m.optimizer), gib(m.peak_activations),
            row.in_flight, gib(m.peak_communication), gib(m.total())));
        report.row({{"table", "places"},
                    {"place", int64_t(place)},
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
    print(fmt::format("  most at place {}{}{}", worst.place, why.empty() ? "" : ": it has ", why));
    if (const int64_t limit = memory_limit(); limit > 0)
        print(fmt::format("  a rank has {} here: it {}", format_bytes(double(limit)),
                          worst.memory.total() <= limit ? "fits" : "does not fit"));
    report.finish();
}

}  // namespace ultrascale
