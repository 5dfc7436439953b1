// A run's lines in the header, and the sections of its report.
#pragma once

#include "first_steps.h"
#include "lab/measure/kept_terms.h"
#include "pictures.h"
#include "predict.h"
#include "step_records.h"

namespace ultrascale::single_gpu {

inline TrainingSetup describe_run(const Chapter& chapter, const SeqRamp& lengths, Llama& model,
                                  Updater& optimizer, StepRecords& records, FreshGradients& fresh,
                                  KeptTerms& terms) {
    TrainingSetup what = training_setup(model, optimizer);
    what.cuda_graph = chapter.cuda_graph;
    if (chapter.naive_mean) what.not_equal = "each micro-batch takes the mean over its own targets";
    if (lengths) what.label = "seq", what.technique = lengths.description();
    what.watch = {&records, &terms};
    if (chapter.fresh_grads) what.watch.push_back(&fresh);
    what.step_done = [&](const Step& step, double norm) { records.step_done(step, norm); };
    return what;
}

inline void print_noise_scale(Report& report, const NoiseScale& noise, int64_t micro_batch,
                              int64_t seq) {
    print(fmt::format(
        "\ngradient noise scale from each step's first {} and its whole batch, over {}:",
        format_count(micro_batch, "sequence"), format_count(noise.count(), "step")));
    print(fmt::format("  tr(S) {:.3g}, |G|^2 {:.3g}", noise.trace(), noise.squared_gradient()));
    print(fmt::format("  critical batch size about {:.3g} sequences = {:.3g} tokens",
                      noise.sequences(), noise.sequences() * double(seq)));
    report.value("noise_scale", "sequences", noise.sequences());
}

// Prints the report's sections for a run that began with step `first`. Returns false if memory or
// communication differ from their predictions.
inline bool print_sections(Report& report, const Options& options, const Chapter& chapter,
                           const StepShape& shape, const SeqRamp& lengths, int64_t first,
                           const StepRecords& records, const KeptTerms& terms) {
    // Memory is that of the longest sequences, speed that of the length in the middle of the run.
    const StepShape longest = lengths.shape(shape, first + options.steps - 1),
                    usual = lengths.shape(shape, first + options.steps / 2);
    const BatchRamp ramp = chapter.ramp(options);
    int64_t most = 0;  // the most micro-batches in any of the first steps
    for (int64_t s = 0; s < std::min<int64_t>(options.steps, 4); ++s)
        most = std::max(most, ramp.sequences(first + s) / options.micro_batch);
    const Prediction predicted = predict(chapter, longest, most);
    bool ok = report.memory(predicted);
    if (chapter.fresh_grads)
        ok = print_fresh_gradients(
                 report, longest,
                 predicted.memory.peak_activations + predicted.memory.gradients_at_peak) &&
             ok;
    if (report.full()) {
        print_anatomy(shape);
        print_peak(shape);
        print_kept(records.kept);
        if (terms.applies() && !lengths) ok = terms.print_table() && ok;
        records.timeline.print_chart();
        print_first_steps(report, records.timeline);
    }
    draw_memory(options.svg, records.timeline);
    ok = report.communication(predicted, options.steps) && ok;
    report.throughput(predict(chapter, usual, most));
    if (records.noise.count() > 0)
        print_noise_scale(report, records.noise, options.micro_batch, shape.seq);
    return ok;
}

}  // namespace ultrascale::single_gpu
