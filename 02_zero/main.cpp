// Chapter 02: ZeRO. Data parallelism in which each rank keeps only a shard of what it would
// otherwise keep whole: optimizer states, gradients, parameters (3_zero.h and the file of each
// stage).
#include "lab/compare.h"
#include "lab/formulas_demo.h"
#include "lab/options.h"
#include "lab/predict.h"
#include "lab/sections.h"
#include "9_stages.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::zero;

namespace {

// One training step, whatever the stage. During forward and backward the stage's hooks gather
// parameters before they are needed and reduce gradients when they are complete; the update changes
// this rank's shards.
void train_step(Step& step, Llama& model, Zero& zero, const Communicator& ranks) {
    zero.begin_step(step.accumulated);
    for (MicroBatch batch : step.micro_batches({&zero})) {
        Saved saved;
        const int64_t m = batch.micro_batch;
        zero.begin_micro_batch(m, m + 1 == step.accumulated);
        model.forward(batch, saved);
        model.backward(batch, saved);
        phase("wait for gradients", [&] { zero.end_micro_batch(); });
    }
    const Tensor squared_norm = zero.squared_norm();
    zero.step(step.learning_rate, squared_norm);
    step.sum_loss(ranks);
    step.finish(squared_norm);
}

// Trains. Returns false if the result differs from plain training on one device, or memory or
// communication from their predictions.
bool train(const Options& options, const ZeroOptions& zero_options, const StepShape& shape) {
    const Communicator& ranks = Communicator::world();
    const Mesh mesh(ranks, {{"dp", ranks.size()}});
    const int64_t A = options.grad_accum;
    Run run("02_zero", options, shape,
            {.micro_batch = options.micro_batch, .count = ranks.size(), .replica = ranks.rank()});

    std::optional<ActivationsOnHost> inputs;
    ModuleFactories factories = default_factories(shape.config, shape.model);
    if (zero_options.offload_activations)
        factories.checkpoint = inputs.emplace(shape.config.layers).checkpoints();
    Llama model(shape.config, shape.model, factories, Stage::whole(shape.config));
    const std::unique_ptr<Zero> zero = make_zero(model, mesh, options, zero_options);
    const Prediction step_prediction =
        predict(zero->layout(), zero->units(), zero_options, shape, A, mesh);
    check_fits_everywhere(step_prediction.memory, memory_limit(),
                          what_needs_less(options, zero_options));
    run.load(zero->start());
    TrainingSetup what = training_setup(model, *zero);
    what.label = "ZeRO", what.technique = describe(zero_options, ranks.size());
    what.layout = {{"dp", ranks.size()}};
    what.not_equal = why_not_equal(zero_options);
    what.bounds = bounds_of(zero_options, verify_bounds(options.dtype));
    run.start(what);
    Occupancy early{};  // after a few steps
    while (Step* step = run.next()) {
        train_step(*step, model, *zero, ranks);
        if (run.steps_done() == settled_steps) early = occupancy();
    }
    zero->finish();

    return run.finish([&](Report& report) {
        bool ok = report.memory(step_prediction);
        if (report.full()) print_formula(zero_options, shape, ranks.size());
        if (options.steps > settled_steps) ok = print_constancy(report, early, options.steps) && ok;
        ok = report.communication(step_prediction, options.steps, run.validation_communication()) &&
             ok;
        if (zero->offloaded()) print_offload(report, *zero->offloaded());
        if (inputs)
            ok = print_activations_on_host(report, *inputs, options.steps * A * kept_on_host(shape),
                                           options.steps) &&
                 ok;
        report.throughput(step_prediction);
        return ok;
    });
}

bool run(const Options& options, Chapter& chapter) {
    chapter.check(options);
    if (chapter.demo == "memory") return demo_memory(options.config(), options.model_name()), true;
    if (chapter.demo == "overlap") return demo_overlap(options, options.config()), true;
    const StepShape shape = step_shape(options, options.config());
    check_sent(chapter.zero, shape.grad_dtype);
    if (options.estimate) return print_estimate(options, chapter.zero, shape), true;
    if (!chapter.compare)
        return train_within_memory(options, [&] { return train(options, chapter.zero, shape); });
    slow_down(options);
    return compare_stages(options, chapter.zero, shape, [](Step& step, Llama& model, Zero& zero) {
        train_step(step, model, zero, Communicator::world());
    });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "02_zero",
                       "Train a Llama with optimizer states, gradients and parameters sharded.",
                       run);
}
