// Chapter 00: training on one device. The step is written out in train() below: forward, backward, update.
#include "batch_size.h"
#include "comparisons.h"
#include "data.h"
#include "explain.h"
#include "memory_anatomy.h"
#include "sampling.h"
#include "saves.h"
#include "setup.h"
#include "training.h"
#include "validation.h"
#include "verify.h"

using namespace ultrascale;

namespace {

struct Chapter {
    AttentionKind attention = AttentionKind::flash;
    int64_t loss_chunk = 0, sample = 0;
    double temperature = 0.8;
    std::string prompt = "The ", batch_ramp, compare;
    bool naive_mean = false, noise_scale = false, estimate = false;

    void add_options(OptionList& options, const Options& shared) {
        options.choice("--attention", attention, {{"flash", AttentionKind::flash}, {"naive", AttentionKind::naive}},
                       "In tiles (flash) or with the T x T matrix in memory (naive)");
        options.add("--loss-chunk", loss_chunk, "Tokens whose logits exist at once; 0: the whole micro-batch's").at_least(0);
        options.flag("--naive-mean", naive_mean,
                     "Average each micro-batch's own mean: wrong where they count different numbers of targets")
            .only_if([this, &shared] { return shared.grad_accum > 1 || !batch_ramp.empty(); },
                     "with one micro-batch a step its mean is the right one; --grad-accum 2 or more");
        options.add("--batch-ramp", batch_ramp, "SIZE:STEPS,...,SIZE in sequences; replaces --grad-accum").excludes({"--grad-accum"});
        options.flag("--noise-scale", noise_scale, "Estimate the critical batch size (needs 2 micro-batches a step)");
        options.flag("--estimate", estimate, "Predict memory, allocate nothing").excludes(training_outputs);
        options.add("--compare", compare, "attention or recompute: measure the alternatives in one table")
            .one_of({"attention", "recompute"})
            .excludes(training_outputs);
        options.add("--sample", sample, "Draw this many bytes at the end").at_least(0);
        const auto samples = [this] { return sample > 0; };
        options.add("--prompt", prompt, "What the sample continues").only_if(samples, "it is for --sample").show_default();
        options.add("--temperature", temperature, "Of the sample")
            .between(1e-3, 1e3)
            .only_if(samples, "it is for --sample")
            .show_default();
    }
};

// Trains; false if the run is not what one plain device does, or held other memory than predicted.
bool train(const Options& options, const Chapter& chapter, const StepShape& shape) {
    const LlamaConfig& config = shape.config;
    const int64_t B = options.micro_batch, T = shape.seq;
    const TokenFile file(options.data_path(), config.vocab);
    const DataLoader loader(file, data_options(options, T));
    if (chapter.compare == "recompute") return compare_recomputation(options, shape, loader);
    std::optional<Validation> validation;
    if (!options.val_data.empty()) validation.emplace(options, config.vocab, data_options(options, T));
    const BatchRamp ramp(chapter.batch_ramp, B * options.grad_accum, B);
    checked_sequences(double(ramp.largest()));
    if (chapter.noise_scale && ramp.largest() < 2 * B)
        user_error("--noise-scale needs two micro-batches a step: {}",
                   chapter.batch_ramp.empty() ? "--grad-accum 2" : fmt::format("a size of at least {} in --batch-ramp", 2 * B));

    // Model and optimizer: fresh, or where --load left off.
    Llama model(config, shape.model);
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(options.dtype);
    parameters.allocate_grads(options.grad_dtype());
    load_or_initialize(options, parameters);
    AdamW optimizer(parameters, options.optimizer);
    TrainingState state = resume_or_start(options, optimizer);
    const int64_t first_step = state.step;

    Report report("00_single_gpu", options, shape, options.steps);
    report.configuration(ramp.sequences(first_step), describe_data(options, file, loader, state));
    if (validation) print(fmt::format("  valid.  {}", validation->description()));
    const Saves saves(options, [&](const std::string& dir) {
        save_checkpoint(dir, config, parameters,
                        {.dtype = options.dtype, .state = &state, .optimizer = optimizer.states()});
    });
    saves.print_plan(state);
    std::optional<Verifier> verifier;
    if (wants_verification(options, config)) {
        std::vector<int64_t> sizes;
        for (int64_t s = 0; s < std::min(options.steps, verified_steps); ++s) sizes.push_back(ramp.sequences(first_step + s));
        verifier.emplace(options, config, loader, sizes);
    }
    ExplainHooks explain_hooks;
    SavedByName anatomy;
    StepTimeline timeline;
    NoiseScale noise;
    memory_reset_peak();

    for (int64_t s = 0; s < options.steps; ++s) {
        SectionSpan step("step", state.step + 1);
        const double begin = now_seconds(), lr = learning_rate_of(options, first_step, state.step);
        const int64_t sequences = ramp.sequences(state.step), accumulated = sequences / B;
        // The loss is a mean over all counted targets of the step, so every micro-batch must know how many there are.
        const int64_t counted = counted_targets(loader, state.next_sample, sequences);
        const bool explained = options.explain && s == 0;
        explain_enable(explained);

        explain("gradients begin anew");
        parameters.clear_grads();
        const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        double first_squared_norm = 0;
        for (int64_t m = 0; m < accumulated; ++m) {
            const SectionSpan micro_batch("micro-batch", m);
            const Batch batch = to_device(loader.batch(state.next_sample + m * B, B));
            const int64_t mean_over = chapter.naive_mean ? std::max<int64_t>(batch.counted_targets, 1) * accumulated : counted;
            Context context{.batch = batch, .loss_scale = float(1 / double(mean_over)), .loss = loss, .micro_batch = int(m)};
            if (explained) context.hooks = &explain_hooks;
            Saved saved;
            phase("forward", [&] { model.forward({}, saved, context); });
            if (s == 0 && m == 0) anatomy.collect(saved);
            phase("backward", [&] { model.backward({}, saved, context); });
            if (chapter.noise_scale && m == 0)
                first_squared_norm = scalar(squared_gradient_norm(parameters)) * double(accumulated * accumulated);
        }
        if (verifier)
            phase("verification",
                  [&] { verifier->gradient(s, parameters.parts(&Parameter::grad)); });
        explain("global gradient norm, clip, AdamW");
        const Tensor squared_norm =
            phase("gradient norm", [&] { return squared_gradient_norm(parameters); });
        phase("update", [&] { optimizer.step(lr, squared_norm); });
        const double loss_value = scalar(loss), squared = scalar(squared_norm);  // here the host waits for the device
        explain_enable(false);
        step.end();

        state = after_step(state, options, file, sequences, T);
        StepRecord record{state.step, loss_value, std::sqrt(squared), lr, now_seconds() - begin, sequences * T};
        if (validation && validation->due(state.step, s + 1 == options.steps)) record.val_loss = validation->loss(model);
        report.step(record);
        if (accumulated > 1 && chapter.noise_scale) noise.add(double(B), first_squared_norm, double(sequences), squared);
        if (verifier) verifier->after_step(s, loss_value, parameters.parts(&Parameter::value));
        timeline.step_ended();
        saves.after_step(state.step);
    }

    if (validation && options.steps == 0) report.validation(state.step, validation->loss(model));  // of what --load brought

    bool ok = true;
    if (options.steps > 0) {
        // --naive-mean is not meant to be equal: it reports and passes.
        if (verifier) ok = verifier->finish(report) || chapter.naive_mean;
        ok = report.memory(estimate_memory(shape)) && ok;
        if (report.full()) {
            print_anatomy(shape);
            print_peak(shape);
            anatomy.print_table();
            timeline.print_chart();
        }
        ok = report.communication({}, options.steps) && ok;
        report.throughput();
    }
    if (noise.count() > 0) {
        print(fmt::format("\ngradient noise scale from a step's first {} and all of them, over {}:", format_count(B, "sequence"),
                          format_count(noise.count(), "step")));
        print(fmt::format("  tr(S) {:.3g}, |G|^2 {:.3g}", noise.trace(), noise.squared_gradient()));
        print(
            fmt::format("  critical batch size about {:.3g} sequences = {:.3g} tokens", noise.sequences(), noise.sequences() * double(T)));
        report.value("noise_scale", "sequences", noise.sequences());
    }
    if (chapter.sample > 0) {
        std::vector<int32_t> prompt;
        for (unsigned char c : chapter.prompt) prompt.push_back(c);
        const std::string text = bytes_to_text(sample_tokens(model, prompt, chapter.sample, T, chapter.temperature, options.seed));
        print(fmt::format("\nsample at temperature {}\n  {}{}", chapter.temperature, chapter.prompt, text));
    }
    saves.at_end(state.step);
    report.finish();
    return ok;
}

}  // namespace

int main(int argc, char** argv) {
    return run_program([&] {
        Chapter chapter;
        const Options options = parse_options(argc, argv, "00_single_gpu", "Train a Llama on one device.",
                                              [&](OptionList& list, const Options& shared) { chapter.add_options(list, shared); });
        if (Communicator::world().size() > 1) user_error("00_single_gpu runs on one device: start it with one rank");
        const LlamaConfig config = options.config();
        const StepShape shape = step_shape(options, config, chapter.attention, chapter.loss_chunk);
        if (chapter.sample > 0 && (config.vocab < 256 || chapter.prompt.empty()))
            user_error("--sample reads and prints bytes: it needs a vocabulary of at least 256 and a --prompt");
        if (chapter.estimate) return print_estimate(options, shape), true;
        if (chapter.compare == "attention") return compare_attention(options, shape), true;
        check_fits(shape, memory_limit());
        return train_within_memory(options, [&] { return train(options, chapter, shape); });
    });
}
