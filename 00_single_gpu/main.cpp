// Chapter 00: training on one device. train_step() is the whole of it: forward, backward, update.
#include "lab/compare.h"
#include "lab/first_steps.h"
#include "lab/formulas_demo.h"
#include "lab/launches_demo.h"
#include "lab/memory_anatomy.h"
#include "lab/pictures.h"
#include "lab/options.h"
#include "lab/step_records.h"
#include "train/run.h"

using namespace ultrascale;
using namespace ultrascale::single_gpu;

namespace {

// One training step. The batch may be larger than what fits at once: micro-batches go through the
// model one after the other, and their gradients add up.
void train_step(Step& step, Llama& model, Updater& optimizer) {
    // exercise 00.1 begin: clear the gradients; then each micro-batch forward and backward
    model.parameters().begin_gradients(step.accumulated);
    for (MicroBatch batch : step.micro_batches()) {
        Saved saved;                   // what backward will need: the activations
        model.forward(batch, saved);   // adds to step.loss
        model.backward(batch, saved);  // adds to the gradients
    }
    // exercise 00.1 end
    const Tensor squared_norm = optimizer.squared_norm();
    optimizer.step(step.learning_rate, squared_norm);
    step.finish(squared_norm);
}

void print_noise_scale(Report& report, const NoiseScale& noise, int64_t micro_batch, int64_t seq) {
    print(fmt::format(
        "\ngradient noise scale from each step's first {} and its whole batch, over {}:",
        format_count(micro_batch, "sequence"), format_count(noise.count(), "step")));
    print(fmt::format("  tr(S) {:.3g}, |G|^2 {:.3g}", noise.trace(), noise.squared_gradient()));
    print(fmt::format("  critical batch size about {:.3g} sequences = {:.3g} tokens",
                      noise.sequences(), noise.sequences() * double(seq)));
    report.value("noise_scale", "sequences", noise.sequences());
}

// Trains. Returns false if the result differs from plain training on one device, or the memory from
// its prediction.
bool train(const Options& options, const Chapter& chapter, const StepShape& shape,
           const SeqRamp& lengths) {
    const DataSlice slice{.micro_batch = options.micro_batch,
                          .mean = chapter.naive_mean ? MeanOver::micro_batch : MeanOver::batch};
    const BatchRamp ramp = chapter.ramp(options);
    Run run(
        "00_single_gpu", options, shape, slice, [&](int64_t s) { return ramp.sequences(s); },
        lengths.cuts([&](int64_t s) { return ramp.sequences_before(s); }));
    if (chapter.compare == "recompute") return compare_recomputation(options, shape, run.loader());

    Llama model(shape.config, shape.model);
    model.parameters().allocate_values(options.dtype);
    FreshGradients fresh(options.grad_dtype());
    if (!chapter.fresh_grads) model.parameters().allocate_grads(options.grad_dtype());
    PlainUpdater optimizer(model.parameters(), options);
    run.load(optimizer.start());
    TrainingSetup what = training_setup(model, optimizer);
    if (chapter.naive_mean) what.not_equal = "each micro-batch takes the mean over its own targets";
    if (lengths) what.label = "seq", what.technique = lengths.description();
    StepRecords records(model.parameters(), chapter.noise_scale,
                        chapter.fresh_grads ? &fresh : nullptr);
    what.watch = {&records};
    if (chapter.fresh_grads) what.watch.push_back(&fresh);
    what.step_done = [&](const Step& step, double norm) { records.step_done(step, norm); };
    run.start(what);
    const int64_t first = chapter.first_step(options);
    while (Step* step = run.next()) {
        if (lengths) step->note = fmt::format("seq {}", lengths.length(step->number - 1));
        train_step(*step, model, optimizer);
    }

    return run.finish([&](Report& report) {
        // Memory is that of the longest sequences, speed that of those in most steps.
        const StepShape longest = lengths.shape(shape, first + options.steps - 1),
                        usual = lengths.shape(shape, first + options.steps / 2);
        int64_t most = 0;  // micro-batches a step, of the first ones
        for (int64_t s = 0; s < std::min<int64_t>(options.steps, 4); ++s)
            most = std::max(most, ramp.sequences(first + s) / options.micro_batch);
        const Prediction predicted = chapter.predict(longest, most);
        bool ok = report.memory(predicted);
        if (chapter.fresh_grads)
            ok = print_fresh_gradients(
                     report, longest,
                     predicted.memory.peak_activations + predicted.memory.gradients_at_peak) &&
                 ok;
        if (report.full()) {
            print_anatomy(shape);
            print_peak(shape);
            records.kept.print_table();
            records.timeline.print_chart();
            print_first_steps(report, records.timeline);
        }
        draw_memory(options.svg, records.timeline);
        ok = report.communication(predicted, options.steps) && ok;
        report.throughput(chapter.predict(usual, most));
        if (records.noise.count() > 0)
            print_noise_scale(report, records.noise, options.micro_batch, shape.seq);
        return ok;
    });
}

void demo(const Options& options, const Chapter& chapter) {
    if (chapter.demo == "parameters") demo_parameters();
    if (chapter.demo == "activations") demo_activations();
    if (chapter.demo == "latent") demo_latent();
    if (chapter.demo == "launches") demo_launches(options);
    if (chapter.demo == "batch")  // MiniMax-01's (arXiv 2501.08313) unless another one is given
        chapter.batch_ramp.empty()
            ? demo_batch("16M:69B,32M:721B,64M:3.91T,128M", 1, 8192)
            : demo_batch(chapter.batch_ramp, options.micro_batch,
                         options.seq > 0 ? options.seq : options.config().default_seq);
}

bool run(const Options& given, Chapter& chapter) {
    chapter.check(given);
    if (!chapter.demo.empty()) return demo(given, chapter), true;
    const SeqRamp lengths = chapter.lengths(given);
    Options options = given;
    if (lengths) options.seq = lengths.last();
    const StepShape shape = step_shape(options, options.config());
    if (options.estimate) {
        const BatchRamp ramp = chapter.ramp(options);
        print_estimate(options, shape, chapter.predict(shape, ramp.largest() / options.micro_batch),
                       ramp.sequences(0));
        return true;
    }
    if (chapter.compare == "attention") return compare_attention(options, shape), true;
    if (!chapter.fresh_grads)
        check_fits(shape, memory_limit());
    else
        check_fits(
            chapter.predict(shape, chapter.ramp(options).largest() / options.micro_batch).memory,
            memory_limit(), what_would_fit(shape, memory_limit()));
    return train_within_memory(options, [&] { return train(options, chapter, shape, lengths); });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "00_single_gpu", "Train a Llama on one device.", run);
}
