// Chapter 02: ZeRO. Data parallelism in which the ranks share what they would otherwise all keep: optimizer states, gradients,
// parameters (zero.h and the file of each stage). The step is written out in train() below.
#include <cmath>
#include <optional>

#include "checkpoint.h"
#include "compare.h"
#include "data.h"
#include "explain.h"
#include "predict.h"
#include "saves.h"
#include "stages.h"
#include "training.h"
#include "validation.h"
#include "verify.h"

using namespace ultrascale;

namespace {

struct Chapter {
    ZeroOptions zero;
    bool no_sync = true, compare = false;

    void add_options(OptionList& options, const Options& shared) {
        options.add("--stage", zero.stage, "What is sharded: 0 nothing, 1 optimizer states, 2 gradients too, 3 parameters too")
            .between(0, 3)
            .only_if([this] { return !compare; }, "--compare takes each stage in turn")
            .show_default();
        options
            .choice("--gather-overlap", zero.gather_overlap,
                    {{"optimizer", GatherOverlap::optimizer}, {"forward", GatherOverlap::forward}},
                    "Of stages 1 and 2: what the all-gather of parameters runs under")
            .only_if([this] { return compare || zero.stage == 1 || zero.stage == 2; }, "it is for stages 1 and 2");
        options.add("--prefetch", zero.prefetch, "Of stage 3: units gathered ahead")
            .between(0, 1000)
            .only_if([this] { return compare || zero.stage == 3; }, "it is for stage 3")
            .show_default();
        options.choice("--offload", zero.offload, {{"none", false}, {"optimizer", true}},
                       "Of stages 1 to 3: what lives, and is computed, on the host");
        options
            .choice("--no-sync", no_sync, {{"on", true}, {"off", false}},
                    "With --grad-accum, stages 0 and 1: communicate after the last micro-batch only (on) or after each (off)")
            .only_if([&shared] { return shared.grad_accum > 1; }, "a step has one micro-batch; --grad-accum 2 or more")
            .only_if([this] { return compare || zero.stage <= 1; }, "stages 2 and 3 communicate after each micro-batch anyway");
        options.flag("--compare", compare, "Train with each stage in turn and print one table; with --offload optimizer also offloaded")
            .excludes(training_outputs);
    }
};

// The book's bytes for Psi parameters on n ranks in bf16, or fp32 (no master weights: k = 8), beside what is held.
void print_formula(const ZeroOptions& zero, const StepShape& shape, int n) {
    const double psi = double(parameter_count(shape.config)), value = double(dtype_bytes(shape.model.dtype)),
                 grad = double(dtype_bytes(shape.grad_dtype)), k = double(optimizer_bytes(shape.model.dtype));
    const double values = value * psi / (zero.stage >= 3 ? n : 1), grads = grad * psi / (zero.stage >= 2 ? n : 1);
    const double states = k * psi / (zero.stage >= 1 ? n : 1);
    const auto over = [&](int from) { return zero.stage >= from ? fmt::format("/{}", n) : ""; };
    const std::string of_states = fmt::format("{}Psi{}", k, over(1));
    print(fmt::format("  the formula, without padding: {}Psi{} + {}Psi{}{} = {}{}", value, over(3), grad, over(2),
                      zero.offload ? "" : " + " + of_states, format_bytes(values + grads + (zero.offload ? 0 : states)),
                      zero.offload ? fmt::format(", and on the host {} = {}", of_states, format_bytes(states)) : ""));
}

std::string what_needs_less(const Options& options, const ZeroOptions& zero) {
    std::string ways = "more ranks";
    if (zero.stage < 3) ways = "--stage 3, " + ways;
    if (options.recompute != Recompute::full) ways += ", --recompute full";
    if (options.micro_batch > 1) ways += ", a smaller --micro-batch";
    return "less is needed with any of: " + ways;
}

// ZeRO-R: buffers of constant size (C_B) and no growing fragmentation (M_D). Both should stand after a few steps and stay.
constexpr int64_t settled_steps = 10;
struct Occupancy {
    int64_t buffers, fragmentation;  // bytes: the most gathered so far; what the allocator holds beyond the most that tensors used
};
Occupancy occupancy() { return {memory_peak_by_category()[int(Memory::communication)], device_overhead().fragmentation}; }

bool print_constancy(Report& report, const Occupancy& early, int64_t steps) {
    const Occupancy late = occupancy();
    const bool constant = late.buffers == early.buffers;
    if (report.full() || !constant)
        print(fmt::format("  from step {} to {}: buffers {} -> {}, fragmentation {} -> {}{}", settled_steps, steps,
                          format_bytes(double(early.buffers)), format_bytes(double(late.buffers)),
                          format_bytes(double(early.fragmentation)), format_bytes(double(late.fragmentation)),
                          constant ? "" : "   MISMATCH"));
    report.value("constancy", "buffers_early", double(early.buffers));
    report.value("constancy", "buffers_late", double(late.buffers));
    report.value("constancy", "fragmentation_early", double(early.fragmentation));
    report.value("constancy", "fragmentation_late", double(late.fragmentation));
    return as_predicted_everywhere(constant);
}

// Trains; false if the run is not what one plain device does, or held or sent other than predicted.
bool train(const Options& options, const Chapter& chapter, const StepShape& shape) {
    const Communicator& ranks = Communicator::world();
    const LlamaConfig& config = shape.config;
    const int64_t B = options.micro_batch, T = shape.seq, N = ranks.size(), accumulated = options.grad_accum,
                  G = sequences_of_step(options, N);
    const TokenFile file(options.data_path(), config.vocab);
    const DataOptions data = data_options(options, T);
    const DataLoader loader(file, data);
    std::optional<Validation> validation;
    if (!options.val_data.empty()) validation.emplace(options, config.vocab, data);

    const ZeroOptions& zero_options = chapter.zero;
    Llama model(config, shape.model);
    const std::unique_ptr<Zero> zero = make_zero(model, ranks, options, zero_options);
    const auto predicted = [&](int rank) { return predict_memory(zero->layout(), model.units(), zero_options, shape, accumulated, rank); };
    check_fits(predicted(0), memory_limit(), what_needs_less(options, zero_options));  // rank 0 has no padding, and so most
    TrainingState state = zero->start();
    const int64_t first_step = state.step;

    Report report("02_zero", options, shape, options.steps);
    report.configuration(G, describe_data(options, file, loader, state));
    const char* sharded[] = {"nothing", "", " and gradients", ", gradients and parameters"};
    report.technique("ZeRO",
                     fmt::format("stage {}: {}{}{} sharded over {}", zero_options.stage,
                                 zero_options.stage > 0 ? "optimizer states" : "",
                                 zero_options.offload ? " (on the host)" : "", sharded[zero_options.stage],
                                 format_count(N, "rank")),
                     {{"dp", N}});
    if (validation) print(fmt::format("  valid.  {}", validation->description()));
    const Saves saves(options, [&](const std::string& dir) {
        zero->finish();
        save_checkpoint(dir, config, zero->values(),
                        {.dtype = options.dtype,
                         .state = &state,
                         .optimizer = zero->optimizer_states(),
                         .spread_over = &ranks});
    });
    saves.print_plan(state);
    std::optional<Verifier> verifier;
    if (wants_verification(options, config))
        verifier.emplace(options, config, loader, std::vector<int64_t>(size_t(std::min(options.steps, verified_steps)), G));
    ExplainHooks explain_hooks(zero.get());
    const auto validate = [&] {
        zero->finish();
        return validation->loss(model, zero.get());
    };
    Occupancy early{};  // after a few steps
    memory_reset_peak();
    ranks.barrier();  // the verifying run kept rank 0 busy
    communication_reset_counts();

    for (int64_t s = 0; s < options.steps; ++s) {
        SectionSpan step("step", state.step + 1);
        const double begin = now_seconds(), lr = learning_rate_of(options, first_step, state.step);
        const int64_t counted = counted_targets(loader, state.next_sample, G);  // of the global batch: the loss is a mean over all of it
        const bool explained = options.explain && s == 0;
        explain_enable(explained);

        zero->begin_step();
        const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        for (int64_t m = 0; m < accumulated; ++m) {
            const SectionSpan micro_batch("micro-batch", m);
            const Batch batch = to_device(loader.batch(state.next_sample + (m * N + ranks.rank()) * B, B));
            Context context{.batch = batch, .loss_scale = float(1 / double(counted)), .loss = loss, .micro_batch = int(m)};
            context.hooks = explained ? static_cast<Hooks*>(&explain_hooks) : zero.get();
            Saved saved;
            zero->begin_micro_batch(m, m + 1 == accumulated);
            phase("forward", [&] { model.forward({}, saved, context); });
            phase("backward", [&] { model.backward({}, saved, context); });
            phase("wait for gradients", [&] { zero->end_micro_batch(); });
        }
        if (verifier) phase("verification", [&] { verifier->gradient(s, zero->gradients()); });
        explain("global gradient norm, clip, AdamW");
        const Tensor squared_norm = phase("gradient norm", [&] { return zero->squared_norm(); });
        phase("update", [&] { zero->update(lr, squared_norm); });
        phase("loss", [&] { ranks.all_reduce(loss); });
        const double loss_value = scalar(loss), squared = scalar(squared_norm);  // here the host waits for the device
        explain_enable(false);
        step.end();

        state = after_step(state, options, file, G, T);
        StepRecord record{state.step, loss_value, std::sqrt(squared), lr, now_seconds() - begin, G * T};
        if (validation && validation->due(state.step, s + 1 == options.steps)) record.val_loss = validate();
        report.step(record);
        if (verifier && s < verified_steps) {
            zero->finish();
            verifier->after_step(s, loss_value, zero->values());
        }
        if (s + 1 == settled_steps) early = occupancy();
        saves.after_step(state.step);
    }
    zero->finish();
    if (validation && options.steps == 0) report.validation(state.step, validate());  // of what --load brought

    bool ok = true;
    if (options.steps > 0) {
        if (verifier) ok = verifier->finish(report);
        ok = report.memory(predicted(ranks.rank())) && ok;
        if (report.full()) print_formula(zero_options, shape, ranks.size());
        if (options.steps > settled_steps) ok = print_constancy(report, early, options.steps) && ok;
        const PredictedCommunication of_step = predict_communication(zero->layout(), model.units(), zero_options, shape, accumulated, ranks.size());
        ok = report.communication(of_step, options.steps, validation ? validation->sent() : CommunicationCounts{}) && ok;
        zero->print_offload(report);
        report.throughput();
    }
    saves.at_end(state.step);
    report.finish();
    return ok;
}

}  // namespace

int main(int argc, char** argv) {
    return run_program([&] {
        Chapter chapter;
        const Options options =
            parse_options(argc, argv, "02_zero", "Train a Llama with optimizer states, gradients and parameters sharded.",
                          [&](OptionList& list, const Options& shared) { chapter.add_options(list, shared); });
        if (chapter.zero.offload && chapter.zero.stage == 0 && !chapter.compare)
            user_error("--offload optimizer: what moves to the host is a rank's shard; --stage 1, 2 or 3");
        const LlamaConfig config = options.config();
        const StepShape shape = step_shape(options, config);
        chapter.zero.every_micro_batch = !chapter.no_sync && options.grad_accum > 1;
        if (chapter.compare) return compare_stages(options, chapter.zero, shape);
        return train_within_memory(options, [&] { return train(options, chapter, shape); });
    });
}
