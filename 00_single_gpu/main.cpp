// Chapter 00: training on one device. train_step() is the whole of it: forward, backward, update.
#include "comparisons.h"
#include "memory_anatomy.h"
#include "memory_picture.h"
#include "options.h"
#include "train/gradients.h"
#include "train/run.h"

using namespace ultrascale;

namespace {

// What is looked at while a step runs: with --noise-scale the first micro-batch's gradient, and in
// the first step what forward keeps.
struct Watched {
    bool noise_scale;
    NoiseScale noise = {};
    double first_squared_norm = 0;
    SavedByName kept = {};
    StepTimeline timeline = {};
};

// One training step. The batch may be larger than what fits at once: micro-batches go through the
// model one after the other, and their gradients add up.
void train_step(Step& step, Llama& model, AdamW& optimizer, Watched& watched) {
    ParameterList& parameters = model.parameters();
    parameters.begin_gradients(step.accumulated);
    for (MicroBatch micro_batch : step.micro_batches()) {
        Saved saved;
        phase("forward", [&] { model.forward({}, saved, micro_batch); });
        if (step.first && micro_batch.micro_batch == 0) watched.kept.collect(saved);
        phase("backward", [&] { model.backward({}, saved, micro_batch); });
        if (watched.noise_scale && micro_batch.micro_batch == 0)
            watched.first_squared_norm = scalar(squared_gradient_norm(parameters));
    }
    step.verify_gradient();
    const Tensor squared_norm =
        phase("gradient norm", [&] { return squared_gradient_norm(parameters); });
    phase("update", [&] { optimizer.step(step.learning_rate, squared_norm); });
    const double squared = step.finish(squared_norm), a = double(step.accumulated);
    if (watched.noise_scale &&
        step.accumulated > 1)  // each is a mean over all of the step's targets
        watched.noise.add(double(step.sequences) / a, watched.first_squared_norm * (a * a),
                          double(step.sequences), squared);
    watched.timeline.step_ended();
}

void print_noise_scale(Report& report, const NoiseScale& noise, int64_t micro_batch, int64_t seq) {
    print(fmt::format("\ngradient noise scale from a step's first {} and all of them, over {}:",
                      format_count(micro_batch, "sequence"), format_count(noise.count(), "step")));
    print(fmt::format("  tr(S) {:.3g}, |G|^2 {:.3g}", noise.trace(), noise.squared_gradient()));
    print(fmt::format("  critical batch size about {:.3g} sequences = {:.3g} tokens",
                      noise.sequences(), noise.sequences() * double(seq)));
    report.value("noise_scale", "sequences", noise.sequences());
}

// Trains; false if the run is not what one plain device does, or held other memory than predicted.
bool train(const Options& options, const Chapter& chapter, const StepShape& shape) {
    const Share share{.micro_batch = options.micro_batch,
                      .mean = chapter.naive_mean ? MeanOver::micro_batch : MeanOver::batch};
    const BatchRamp ramp = chapter.ramp(options);
    Run run("00_single_gpu", options, shape, share, [&](int64_t s) { return ramp.sequences(s); });
    if (chapter.compare == "recompute") return compare_recomputation(options, shape, run.loader());

    Llama model(shape.config, shape.model);
    model.parameters().allocate_values(options.dtype);
    model.parameters().allocate_grads(options.grad_dtype());
    AdamW optimizer(model.parameters(), options.optimizer);
    run.load(model.parameters(), optimizer);
    Trained what = trained(model, optimizer);
    if (chapter.naive_mean) what.not_equal = "each micro-batch takes the mean over its own targets";
    run.start(what);
    Watched watched{.noise_scale = chapter.noise_scale};
    while (Step* step = run.next()) train_step(*step, model, optimizer, watched);

    return run.finish([&](Report& report) {
        const Prediction predicted = predict_one_device(shape, model.parameters().local_numel());
        bool ok = report.memory(predicted);
        if (report.full()) {
            print_anatomy(shape);
            print_peak(shape);
            watched.kept.print_table();
            watched.timeline.print_chart();
        }
        draw_memory(options.svg, watched.timeline);
        ok = report.communication(predicted, options.steps) && ok;
        report.throughput(predicted);
        if (watched.noise.count() > 0)
            print_noise_scale(report, watched.noise, options.micro_batch, shape.seq);
        return ok;
    });
}

bool run(const Options& options, Chapter& chapter) {
    chapter.check();
    const StepShape shape = step_shape(options, options.config());
    if (chapter.estimate) return print_estimate(options, shape), true;
    if (chapter.compare == "attention") return compare_attention(options, shape), true;
    check_fits(shape, memory_limit());
    return train_within_memory(options, [&] { return train(options, chapter, shape); });
}

}  // namespace

int main(int argc, char** argv) {
    return run_chapter(argc, argv, "00_single_gpu", "Train a Llama on one device.", run);
}
