// Chapter 04: context parallelism. The ranks of a group share each sequence: every rank takes some
// of its tokens through the whole model, and meets the others in attention only
// (1_ring.h, and the file of each other variant). Groups train on different samples.
#include "lab/balance_demo.h"
#include "lab/bounds.h"
#include "lab/compare.h"
#include "lab/merge_demo.h"
#include "lab/options.h"
#include "lab/predict.h"
#include "lab/ring_demo.h"
#include "lab/sampling.h"
#include "lab/sections.h"
#include "train/gradients.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::context_parallel;

namespace {

// One training step. The ranks of a context-parallel group take parts of the same sequences and
// communicate inside attention. Weights are whole on every rank, so a gradient is summed over all
// ranks that saw other tokens: over dp and cp at once.
void train_step(Step& step, Llama& model, Updater& optimizer, const Mesh& mesh) {
    ParameterList& parameters = model.parameters();
    parameters.begin_gradients(step.accumulated);
    for (MicroBatch batch : step.micro_batches()) {
        Saved saved;
        model.forward(batch, saved);
        model.backward(batch, saved);
    }
    sum_gradients(parameters, mesh);
    const Tensor squared_norm = optimizer.squared_norm();
    optimizer.step(step.learning_rate, squared_norm);
    step.sum_loss(mesh.group({"dp", "cp"}));
    step.finish(squared_norm);
}

// Trains. Returns false if the result differs from plain training on one device, or memory or
// communication from their predictions.
bool train(const Options& options, const ContextOptions& context, const StepShape& shape) {
    const Communicator& world = Communicator::world();
    const Mesh mesh(world, {{"dp", world.size() / context.cp}, {"cp", context.cp}});
    const Communicator &dp = mesh.group("dp"), &cp = mesh.group("cp");
    ContextParallel parallel(shape.config, context, shape.seq, cp);
    const DataSlice slice{.micro_batch = options.micro_batch,
                          .count = dp.size(),
                          .replica = dp.rank(),
                          .part = [&](const HostBatch& whole) { return parallel.part(whole); }};
    Run run("04_context_parallel", options, shape, slice);

    Llama model(shape.config, shape.model, parallel.factories(shape.model),
                Stage::whole(shape.config));
    ParameterList& parameters = model.parameters();
    check_fits(shape, context, parallel.ring_rank(), memory_limit());
    parameters.allocate_values(options.dtype);
    parameters.allocate_grads(options.grad_dtype(), mesh.group({"dp", "cp"}).symmetric_memory());
    PlainUpdater optimizer(parameters, options, &mesh);
    run.load(optimizer.start());
    TrainingSetup what = training_setup(model, optimizer);
    what.label = "context", what.technique = describe(context, dp.size());
    what.layout = {{"cp", context.cp}, {"dp", dp.size()}};
    what.bounds = bounds_of(context, options.dtype);
    what.loss_group = &cp;
    what.next_token = [&](const HostBatch& text) {
        return logits_of_next(model, text, shape.config.vocab, parallel);
    };
    Sections sections(shape, context, parallel);
    what.watch = sections.watch();
    run.start(what);
    while (Step* step = run.next()) train_step(*step, model, optimizer, mesh);

    return run.finish([&](Report& report) {
        const Prediction step_prediction = predict(shape, context, parameters, options.grad_accum,
                                                   mesh.group({"dp", "cp"}), parallel.ring_rank());
        return sections.print(report, run, step_prediction.times(options.steps), options.steps);
    });
}

bool run(const Options& options, Chapter& chapter) {
    chapter.check(options);
    if (chapter.demo == "ring") return demo_ring(Communicator::world());
    if (chapter.demo == "balance") return demo_balance(options);
    if (chapter.demo == "merge") return demo_merge();
    const ContextOptions& context = chapter.context;
    StepShape shape = step_shape(options, options.config());
    check_shares(shape.config, context, shape.seq);
    if (chapter.memory_budget > 0)
        fit_into_budget(shape, chapter.memory_budget, memory_by_shape(context));
    check_made_again(shape, context);
    if (options.estimate) return print_estimate(options, context, shape), true;
    if (chapter.compare) {
        slow_down(options);
        return compare_variants(options, context.cp, shape, train_step);
    }
    return train_within_memory(options, [&] { return train(options, context, shape); });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "04_context_parallel",
                       "Train a Llama on sequences that several devices share.", run);
}
