// Chapter 00: training on one device. train_step() is all of it: forward, backward, update.
#include "lab/compare.h"
#include "lab/demos.h"
#include "lab/predict.h"
#include "lab/sections.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::single_gpu;

namespace {

// One training step. The batch may be larger than what fits into memory at once: micro-batches go
// through the model one after the other, and their gradients add up.
void train_step(Step& step, Llama& model, Updater& optimizer) {
    // exercise 00.1 begin: clear the gradients; then each micro-batch forward and backward
    model.parameters().begin_gradients(step.accumulated);
    for (MicroBatch batch : step.micro_batches()) {
        Saved saved;                   // the activations, which backward will need
        model.forward(batch, saved);   // adds to step.loss
        model.backward(batch, saved);  // adds to the gradients
    }
    // exercise 00.1 end
    const Tensor squared_norm = optimizer.squared_norm();
    optimizer.step(step.learning_rate, squared_norm);
    step.finish(squared_norm);
}

// Trains. Returns false if the result differs from plain training on one device, or the memory from
// its prediction.
bool train(const Options& options, const Chapter& chapter, const StepShape& shape,
           const SeqRamp& lengths) {
    const BatchRamp batches = chapter.ramp(options);
    Run run(
        "00_single_gpu", options, shape, chapter.slice(options),
        [&](int64_t s) { return batches.sequences(s); },
        lengths.cuts([&](int64_t s) { return batches.sequences_before(s); }));
    Llama model(shape.config, shape.model);
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(options.dtype);
    FreshGradients fresh(options.grad_dtype());
    if (!chapter.fresh_grads) parameters.allocate_grads(options.grad_dtype());
    PlainUpdater optimizer(parameters, options);
    run.load(optimizer.start());
    StepRecords records(parameters, chapter.noise_scale, chapter.fresh_grads ? &fresh : nullptr);
    KeptTerms terms(shape);
    run.start(describe_run(chapter, lengths, model, optimizer, records, fresh, terms));
    const int64_t first = chapter.first_step(options);
    while (Step* step = run.next()) {
        step->note = lengths.note(step->number - 1);
        train_step(*step, model, optimizer);
    }
    return run.finish([&](Report& report) {
        return print_sections(report, options, chapter, shape, lengths, first, records, terms);
    });
}

bool run(const Options& given, Chapter& chapter) {
    chapter.check(given);
    if (!chapter.demo.empty()) return run_demo(given, chapter), true;
    const SeqRamp lengths = chapter.lengths(given);
    Options options = given;
    if (lengths) options.seq = lengths.last();
    StepShape shape = step_shape(options, options.config());
    if (chapter.memory_budget > 0)
        fit_into_budget(shape, chapter.memory_budget, [&](const StepShape& changed) {
            return predict(options, chapter, changed).memory;
        });
    if (options.estimate) return print_estimate(options, chapter, shape), true;
    if (chapter.compare == "attention") return compare_attention(options, shape), true;
    check_fits(options, chapter, shape);
    chapter.ramp(options);  // throws UserError if the text is not a ramp
    return train_within_memory(options, [&] {
        return chapter.compare.empty() ? train(options, chapter, shape, lengths)
                                       : compare_recomputation(options, shape);
    });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "00_single_gpu", "Train a Llama on one device.", run);
}
