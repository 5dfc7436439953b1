// Chapter 08: mixed precision. The same model and data, with each tensor in the format of a recipe
// (3_recipes.h). Ranks train on different samples and sum their gradients.
#include "lab/accumulator_demo.h"
#include "lab/all_reduce_demo.h"
#include "lab/blocks_demo.h"
#include "lab/compare.h"
#include "lab/format_pictures.h"
#include "lab/formats_demo.h"
#include "lab/gradient_histogram.h"
#include "lab/options.h"
#include "lab/predict.h"
#include "lab/reference.h"
#include "lab/rounding_demo.h"
#include "lab/scales_demo.h"
#include "lab/sections.h"
#include "lab/swiglu_demo.h"
#include "lab/traps.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::mixed_precision;

namespace {

// One training step. The loss is multiplied by a scale, so all gradients carry this factor through
// backward and through the sum over the ranks; they are divided by it before they are clipped. If a
// gradient overflowed on any rank, no rank updates its weights.
void train_step(Step& step, MixedTraining& training, const Mesh& mesh) {
    Llama& model = training.model;
    const double scale = training.loss_scale.scale();
    training.begin_step(step.accumulated);
    for (MicroBatch batch : step.micro_batches()) {
        batch.token_weight *= float(scale);
        Saved saved;
        model.forward(batch, saved);
        model.backward(batch, saved);
    }
    training.sum_gradients(mesh);
    training.unscale(scale, mesh);
    const Tensor squared_norm = training.squared_norm();
    training.step(step.learning_rate, squared_norm);
    step.sum_loss(mesh.group("dp"));
    step.skipped = training.end_step(step.number, mesh);
    step.finish(squared_norm, scale);
}

// Trains. Returns false if the result differs from that of the same recipe on one device, or if
// memory or communication differ from their predictions.
bool train(const Options& options, const Chapter& chapter, const StepShape& shape) {
    const PrecisionOptions& precision = chapter.precision;
    const Communicator& world = Communicator::world();
    const Mesh mesh(world, {{"dp", world.size()}});
    const Communicator alone = world.split(world.rank(), 0, "alone");
    const Mesh one(alone, {{"dp", 1}});
    Run run("08_mixed_precision", options, shape,
            {.micro_batch = options.micro_batch, .count = world.size(), .replica = world.rank()});

    check_fits(predict_memory(shape, precision).memory, memory_limit(), what_needs_less);
    GradientHistogram histogram(draws(options.svg));
    const std::unique_ptr<MixedTraining> owned =
        make_training(chapter.trap, shape, precision, options,
                      [&](ModuleFactories& factories) { histogram.add_to(factories); });
    MixedTraining& training = *owned;
    run.load(training.start());
    const MixedReference* reference = nullptr;  // on rank 0, with --verify
    TrainingSetup what = training_setup(training.model, training);
    what.label = "recipe", what.technique = describe(precision);
    what.layout = {{"dp", world.size()}};
    what.reference = [&](const TrainingState& start, int64_t steps) {
        auto made = std::make_unique<MixedReference>(
            options, shape, precision, run.loader(), start,
            std::vector<int64_t>(size_t(steps), sequences_of_step(options, world.size())), one,
            train_step);
        reference = made.get();
        return made;
    };
    what.bounds = recipe_bounds(precision.recipe);
    what.cuda_graph = chapter.cuda_graph;
    if (training.loss_scale.scaled()) what.no_graph = "the loss has another scale in later steps";
    if (draws_gradients(precision.recipe)) what.no_graph = "gradients are rounded at random";
    what.step_done = [&](const Step&, double) { histogram.counting = false; };
    run.start(what);
    while (Step* step = run.next()) train_step(*step, training, mesh);

    return run.finish([&](Report& report) {
        bool ok = report_formats(report, precision.recipe, reference);
        const Prediction predicted = predict(shape, precision, training.model.parameters(),
                                             training.linears.parameters(), mesh.group("dp"));
        ok = report.memory(predicted) && ok;
        report_bytes(report, shape, precision);
        report_blocks(report, shape, precision.recipe);
        ok = report.communication(predicted, options.steps, run.validation_communication()) && ok;
        report_loss_scale(report, training.loss_scale, options.steps);
        report_fp8_sum(report, training, world.size());
        print_gradients(report, histogram, first_loss_scale(precision));
        draw_gradients(options.svg, histogram, first_loss_scale(precision));
        report.throughput(predicted);
        return ok;
    });
}

bool run(const Options& given, Chapter& chapter) {
    chapter.check(given);
    if (chapter.demo == "formats") return demo_formats(chapter.show), draw_formats(given.svg), true;
    if (chapter.demo == "rounding") return demo_rounding();
    if (chapter.demo == "scales") return demo_scales();
    if (chapter.demo == "accumulator") return demo_accumulator();
    if (chapter.demo == "swiglu") return demo_swiglu();
    if (chapter.demo == "all-reduce") return demo_all_reduce();
    if (chapter.demo == "blocks") return demo_blocks();
    Options options = given;
    const PrecisionOptions& precision = chapter.precision;
    options.dtype = precision.recipe.activations;
    options.fp32_grads = precision.recipe.sum() == DType::fp32;
    const StepShape shape = step_shape(options, options.config());
    if (options.estimate) return print_estimate(options, precision, shape), true;
    if (chapter.compare) return compare_recipes(options, precision, shape, train_step);
    return train_within_memory(options, [&] { return train(options, chapter, shape); });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "08_mixed_precision",
                       "Train a Llama with each tensor in a format of its own.", run);
}
