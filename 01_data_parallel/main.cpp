// Chapter 01: data parallelism. Every rank holds the whole model and trains on its own part of the
// batch; the ranks' gradients are summed in one of several ways (gradient_sync.h and the file of
// each technique).
#include "lab/bandwidth_demo.h"
#include "lab/collectives_demo.h"
#include "lab/compare.h"
#include "lab/options.h"
#include "lab/pictures.h"
#include "lab/planet_demo.h"
#include "lab/predict.h"
#include "lab/latency_demo.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::data_parallel;

namespace {

// One training step: each rank runs its own micro-batches, the gradients are summed over all ranks,
// and so all make the same update. `sync` communicates in its hooks and in finish(): with gradient
// accumulation once a step (as PyTorch's no_sync), or, if `sums` is given, after each micro-batch,
// adding the results up in `sums`.
void train_step(Step& step, Llama& model, Updater& optimizer, GradientSync& sync,
                const Tensor& sums, const Communicator& ranks) {
    ParameterList& parameters = model.parameters();
    const Tensor& gradients = parameters.flat_grads();
    parameters.begin_gradients(sums ? 1 : step.accumulated);
    for (MicroBatch batch : step.micro_batches({&sync})) {
        Saved saved;
        model.forward(batch, saved);
        model.backward(batch, saved);
        if (!sums) continue;
        phase("wait for gradients", [&] { sync.finish(); });
        batch.micro_batch == 0 ? ops::copy(sums, gradients) : ops::add(sums, gradients);
        parameters.begin_gradients();
    }
    if (sums)
        ops::copy(gradients, sums);
    else
        phase("wait for gradients", [&] { sync.finish(); });
    const Tensor squared_norm = optimizer.squared_norm();
    optimizer.step(step.learning_rate, squared_norm);
    step.sum_loss(ranks);
    step.finish(squared_norm);
}

// Trains. Returns false if the result differs from plain training on one device, or memory or
// communication from their predictions.
bool train(const Options& options, const Chapter& chapter, const StepShape& shape) {
    const Communicator& ranks = Communicator::world();
    const Mesh mesh(ranks, {{"dp", ranks.size()}});
    const bool meets_rarely = chapter.sync.kind == SyncKind::diloco,
               every_time = chapter.every_time(options);
    Run run("01_data_parallel", options, shape,
            {.micro_batch = options.micro_batch,
             .count = ranks.size(),
             .replica = ranks.rank(),
             .mean = meets_rarely ? MeanOver::own_samples : MeanOver::batch});

    // The same model and optimizer on every rank: fresh, or from --load's checkpoint.
    Llama model(shape.config, shape.model);
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(options.dtype);
    parameters.allocate_grads(options.grad_dtype(), ranks.symmetric_memory());
    PlainUpdater optimizer(parameters, options);
    run.load(optimizer.start());
    const std::unique_ptr<GradientSync> sync =
        make_sync(chapter.sync, parameters, mesh, options.grad_dtype());
    std::optional<DiLoCo> diloco;
    if (meets_rarely) diloco.emplace(parameters, optimizer, ranks, chapter.sync.diloco);
    const Tensor sums = every_time ? Tensor::empty(parameters.flat_grads().shape(),
                                                   options.grad_dtype(), Memory::gradient)
                                   : Tensor();
    TrainingSetup what = training_setup(model, optimizer);
    what.label = "sync", what.technique = describe(chapter.sync, every_time);
    what.layout = {{"dp", ranks.size()}};
    if (diloco) {
        what.weights_only = true;  // each rank has moments of its own
        what.validation_note = "; between two outer steps the weights are rank 0's own";
        what.not_equal = "DiLoCo is a different algorithm: ranks train apart between outer steps";
    }
    if (options.grad_dtype() == DType::fp32 && options.dtype == DType::fp32 &&
        chapter.sync.wire(DType::fp32) == DType::bf16)
        what.bounds = bounds_of_bf16_on_the_wire();
    run.start(what);
    while (Step* step = run.next()) {
        const int64_t done = run.steps_done() + 1;
        if (diloco)
            diloco_step(*step, model, optimizer, *diloco, ranks, done, done == options.steps);
        else
            train_step(*step, model, optimizer, *sync, sums, ranks);
    }

    return run.finish([&](Report& report) {
        const int64_t steps = options.steps;
        const Prediction run_prediction =
            predict_run(options, chapter, shape, parameters.local_numel(), *sync);
        bool ok = report.memory(run_prediction);
        ok = report.communication_of_run(run_prediction, steps) && ok;
        const int64_t tokens = options.micro_batch * options.grad_accum * shape.seq;
        if (diloco) diloco->print_savings(report, steps, tokens, options.grad_dtype());
        report.throughput(run_prediction);
        return ok;
    });
}

bool run(const Options& options, Chapter& chapter) {
    const Communicator& world = Communicator::world();
    chapter.check_and_find_nodes(options, world);
    if (!chapter.demo.empty() || chapter.compare) slow_down(options);
    if (chapter.demo == "collectives") {
        RingHistory history;
        const bool ok = demo_collectives(world, history);
        draw_ring(options.svg, history);
        return ok;
    }
    if (chapter.demo == "bandwidth") return demo_bandwidth(options, world, chapter.largest_bytes());
    if (chapter.demo == "planet") return demo_planet(options, parse_planet(chapter.planet)), true;
    if (chapter.demo == "latency") {
        const Link link{chapter.hop_gbps * 1e9 / 8, chapter.hop_us * 1e-6};
        return demo_ring_latency(options, world, link, chapter.largest_bytes()), true;
    }
    const StepShape shape = step_shape(options, options.config());
    if (options.estimate) return print_estimate(options, chapter, shape), true;
    check_fits(options, chapter, shape);
    if (!chapter.compare)
        return train_within_memory(options, [&] { return train(options, chapter, shape); });
    // The table measures the communication of gradients, so each rank keeps its own part of the
    // loss.
    const Communicator alone = world.split(world.rank(), 0, "alone");
    const auto step_with = [&](Step& step, Llama& model, Updater& optimizer, GradientSync& sync) {
        train_step(step, model, optimizer, sync, {}, alone);
    };
    return compare_syncs(options, chapter.sync, shape, options.node_size > 0, step_with);
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "01_data_parallel",
                       "Train a Llama on several devices, each with a part of the batch.", run);
}
