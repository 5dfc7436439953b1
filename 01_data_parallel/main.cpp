// Chapter 01: data parallelism. Every rank holds the whole model and trains on its own part of the
// batch; the ranks' gradients are summed in one of several ways (1_naive.h and the files after it).
#include "4_accumulation.h"
#include "lab/compare.h"
#include "lab/demos.h"
#include "lab/estimate.h"
#include "lab/sections.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::data_parallel;

namespace {

// One training step: each rank runs its own micro-batches, and the gradients are summed over all
// ranks, so that all ranks make the same update.
void train_step(Step& step, Llama& model, Updater& optimizer, GradientSync& sync,
                Accumulation& gradients, const Communicator& ranks) {
    gradients.begin_step(step.accumulated);
    for (MicroBatch batch : step.micro_batches({&sync})) {
        Saved saved;
        model.forward(batch, saved);
        model.backward(batch, saved);                  // calls `sync` for each complete gradient
        gradients.end_micro_batch(batch.micro_batch);  // here at the latest, sums over the ranks
    }
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
    const bool meets_rarely = chapter.sync.kind == SyncKind::diloco;
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
    const auto sync = make_sync(chapter.sync, parameters, mesh, options.grad_dtype());
    Accumulation gradients(parameters, *sync, chapter.every_time(options));
    std::optional<DiLoCo> diloco;
    if (meets_rarely) diloco.emplace(parameters, optimizer, ranks, chapter.sync.diloco);
    run.start(describe_run(options, chapter, model, optimizer));
    while (Step* step = run.next()) {
        const int64_t done = run.steps_done() + 1;
        if (diloco)
            diloco_step(*step, model, optimizer, *diloco, done, done == options.steps);
        else
            train_step(*step, model, optimizer, *sync, gradients, ranks);
    }
    return run.finish([&](Report& report) {
        return print_sections(report, options, chapter, shape, parameters, *sync, mesh);
    });
}

bool run(const Options& options, Chapter& chapter) {
    chapter.check_and_find_nodes(options, Communicator::world());
    if (!chapter.demo.empty()) return run_demo(options, chapter);
    StepShape shape = step_shape(options, options.config());
    if (chapter.memory_budget > 0)
        fit_into_budget(shape, chapter.memory_budget, memory_by_shape(options, chapter, shape));
    if (options.estimate) return print_estimate(options, chapter, shape), true;
    check_fits(options, chapter, shape);
    if (chapter.compare)
        return compare_syncs(options, chapter.sync, shape, options.node_size > 0, train_step);
    return train_within_memory(options, [&] { return train(options, chapter, shape); });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "01_data_parallel",
                       "Train a Llama on several devices, each with a part of the batch.", run);
}
