// Chapter 02: ZeRO. Data parallelism in which each rank keeps only a shard of what it would
// otherwise keep whole: optimizer states, gradients, parameters. 1_plain.h is the idea alone;
// 3_zero.h and the files after it are the three stages.
#include "lab/compare.h"
#include "lab/formulas_demo.h"
#include "lab/options.h"
#include "lab/predict.h"
#include "lab/sections.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::zero;

namespace {

// One training step, whatever the stage. During forward and backward a stage's hooks gather
// parameters before they are needed and reduce gradients when they are complete (1_plain.h does it
// in end_micro_batch() and step()). The update changes this rank's shards.
void train_step(Step& step, Llama& model, Updater& zero) {
    zero.begin_step(step.accumulated);
    for (MicroBatch batch : step.micro_batches({&zero})) {
        Saved saved;
        zero.begin_micro_batch(batch.micro_batch, batch.micro_batch + 1 == step.accumulated);
        model.forward(batch, saved);
        model.backward(batch, saved);
        zero.end_micro_batch();
    }
    const Tensor squared_norm = zero.squared_norm();
    zero.step(step.learning_rate, squared_norm);
    step.sum_loss(Communicator::world());
    step.finish(squared_norm);
}

// Trains. Returns false if the result differs from plain training on one device, or memory or
// communication from their predictions.
bool train(const Options& options, const ZeroOptions& zero, const StepShape& shape) {
    const Communicator& ranks = Communicator::world();
    const Mesh mesh(ranks, data_axes(ranks.size(), zero));
    Run run("02_zero", options, shape,
            {.micro_batch = options.micro_batch, .count = ranks.size(), .replica = ranks.rank()});

    std::optional<ActivationsOnHost> inputs;
    ModuleFactories factories = default_factories(shape.config, shape.model);
    if (zero.offload_activations)
        factories.checkpoint = inputs.emplace(checkpoints_of(shape)).checkpoints();
    Llama model(shape.config, shape.model, factories, Stage::whole(shape.config));
    sum_over_replicas(model.parameters(), mesh);
    const Prediction predicted = predict(model, zero, shape, options.grad_accum, mesh);
    check_fits_everywhere(predicted.memory, memory_limit(),
                          [&] { return what_needs_less(options, zero); });
    const std::unique_ptr<Updater> updater = make_zero(model, mesh, options, zero);
    run.load(updater->start());
    run.start(setup(model, *updater, options, zero));
    Occupancy early{};  // after a few steps
    while (Step* step = run.next()) {
        train_step(*step, model, *updater);
        if (run.steps_done() == settled_steps) early = occupancy();
    }
    updater->finish();
    return run.finish([&](Report& report) {
        return print_sections(report, run, predicted, options, shape, zero, early,
                              model.parameters(), *updater, inputs);
    });
}

bool run(const Options& options, Chapter& chapter) {
    chapter.check(options);
    if (!chapter.demo.empty()) only_llama(options.config(), "--demo " + chapter.demo);
    if (chapter.demo == "memory") return demo_memory(options.config(), options.model_name()), true;
    if (chapter.demo == "overlap") return demo_overlap(options, options.config()), true;
    StepShape shape = step_shape(options, options.config());
    check_sent(chapter.zero, shape.grad_dtype);
    if (chapter.memory_budget > 0)
        fit_into_budget(shape, chapter.memory_budget,
                        memory_by_shape(options, chapter.zero, shape));
    if (options.estimate) return print_estimate(options, chapter.zero, shape), true;
    if (!chapter.compare)
        return train_within_memory(options, [&] { return train(options, chapter.zero, shape); });
    slow_down(options);
    return compare_stages(options, chapter.zero, shape, train_step);
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "02_zero",
                       "Train a Llama with optimizer states, gradients and parameters sharded.",
                       run);
}
