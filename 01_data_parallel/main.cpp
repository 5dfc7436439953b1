// Chapter 01: data parallelism. Every rank holds the whole model and trains on its own part of the batch; the ranks' gradients are
// summed in one of several ways (gradient_sync.h and the files beside it). The step is written out in train() below.
#include <algorithm>
#include <cmath>
#include <optional>

#include "bandwidth_demo.h"
#include "checkpoint.h"
#include "collectives_demo.h"
#include "compare.h"
#include "data.h"
#include "explain.h"
#include "saves.h"
#include "setup.h"
#include "training.h"
#include "validation.h"
#include "verify.h"

using namespace ultrascale;

namespace {

struct Chapter {
    SyncOptions sync;
    bool no_sync = true, compare = false;
    int node_size = 0;  // of --node-size; 0: the machines are the nodes
    double inter_gbps = 0;
    std::string demo;
    double largest_mib = 0;

    void add_options(OptionList& options, const Options& shared) {
        options.choice("--sync", sync.kind,
                       {{"naive", SyncKind::naive},
                        {"overlap", SyncKind::overlap},
                        {"bucket", SyncKind::bucket},
                        {"ring", SyncKind::ring},
                        {"hierarchical", SyncKind::hierarchical},
                        {"diloco", SyncKind::diloco}},
                       "How the gradients are summed; diloco: the weights meet, not the gradients");
        const auto with = [this](std::initializer_list<SyncKind> kinds) {
            return [this, kinds = std::vector<SyncKind>(kinds)] {
                return compare || std::ranges::count(kinds, sync.kind) > 0;
            };
        };
        options.add("--bucket-mb", sync.bucket_mb, "Size of a bucket in MiB")
            .between(1e-6, 1e6)
            .only_if(with({SyncKind::bucket, SyncKind::hierarchical}), "it is for --sync bucket and hierarchical")
            .show_default();
        options
            .choice("--ring-directions", sync.ring_directions, {{"one", RingDirections::one}, {"both", RingDirections::both}},
                    "Of --sync ring: all one way, or half of it each way")
            .only_if([this] { return sync.kind == SyncKind::ring; }, "it is for --sync ring");
        options
            .choice("--no-sync", no_sync, {{"on", true}, {"off", false}},
                    "With --grad-accum: communicate after the last micro-batch only (on) or after each (off)")
            .only_if([&shared] { return shared.grad_accum > 1; }, "a step has one micro-batch; --grad-accum 2 or more");
        const auto diloco = with({SyncKind::diloco});
        const char* const of_diloco = "it is for --sync diloco";
        options.add("--inner-steps", sync.diloco.inner_steps, "Of --sync diloco: steps from one meeting to the next")
            .between(1, 1e9)
            .only_if(diloco, of_diloco)
            .show_default();
        options.add("--outer-lr", sync.diloco.lr, "Of --sync diloco: how far theta follows")
            .between(0, 100)
            .only_if(diloco, of_diloco)
            .show_default();
        options.add("--outer-momentum", sync.diloco.momentum, "Of --sync diloco: Nesterov's")
            .between(0, 1)
            .only_if(diloco, of_diloco)
            .show_default();
        const OneOption size = options.add("--node-size", node_size, "Pretend nodes of this many ranks, slow between them").between(1, 1e6);
        const OneOption rate =
            options.add("--inter-gbps", inter_gbps, "Rate of each rank's network card between the pretended nodes, Gbit/s")
                .between(1e-3, 1e5);
        size.needs(rate), rate.needs(size);
        options.flag("--compare", compare, "Train with each technique in turn and print one table")
            .excludes(training_outputs)
            .excludes({"--sync", "--grad-accum", "--no-sync"});
        options.add("--demo", demo, "collectives: what each one does; bandwidth: how fast they are")
            .one_of({"collectives", "bandwidth"})
            .excludes(training_outputs)
            .excludes({"--sync", "--compare"});
        options.add("--largest-mib", largest_mib, "Of --demo bandwidth. Default: 1024 on GPUs, 16 on the CPU")
            .between(1e-3, 1e5)
            .only_if([this] { return demo == "bandwidth"; }, "it is for --demo bandwidth");
    }

    // --no-sync off: gradients are summed after each micro-batch, and added up.
    bool every_time(const Options& options) const { return !no_sync && options.grad_accum > 1; }
    // How the ranks sit in nodes: as the options pretend, else as the machines are.
    void check_and_find_nodes(const Options& options, const Communicator& world) {
        if (sync.kind == SyncKind::diloco && options.save_every > 0)
            user_error(
                "--save-every: no run goes on from a checkpoint of --sync diloco, whose ranks "
                "have an optimizer state each");
        if (sync.kind == SyncKind::diloco && !no_sync) user_error("--no-sync off: --sync diloco sums no gradients at all");
        if (node_size > 0 && world.size() % node_size != 0)
            user_error("--node-size {}: {} ranks cannot be cut into nodes of {}, which must divide their number", node_size, world.size(),
                       node_size);
        if (node_size > 0 && ranks_on_this_node() != world.size())
            user_error("--node-size pretends the nodes of one machine; these ranks are on several already");
        sync.ranks_per_node = node_size > 0 ? node_size : ranks_on_this_node();
        if (sync.kind != SyncKind::hierarchical) return;
        for (const std::string& there : world.gather_strings(std::to_string(sync.ranks_per_node)))
            if (there != std::to_string(sync.ranks_per_node))
                user_error("--sync hierarchical: nodes of {} and of {} ranks; all must have as many", sync.ranks_per_node, there);
    }
    void slow_down() const {
        if (node_size == 0) return;
        print(fmt::format("  nodes   {} of {}, pretended: {:.4g} Gbit/s for each rank's network card",
                          Communicator::world().size() / node_size, format_count(node_size, "rank"), inter_gbps));
        pretend_nodes(node_size, inter_gbps);
    }
};

// What a rank holds, without the buffers of the way the gradients are summed.
MemoryEstimate predict_memory(const Options& options, const Chapter& chapter, const StepShape& shape) {
    MemoryEstimate m = estimate_memory(shape);
    m.one_after_the_other = true;  // a ring's and DiLoCo's buffers come when the backward is over
    if (chapter.every_time(options)) m.gradients *= 2;  // the sums over micro-batches
    if (chapter.sync.kind == SyncKind::diloco) DiLoCo::add_to(m, parameter_count(shape.config));
    return m;
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

    // The same model and optimizer on every rank: fresh, or where --load left off.
    Llama model(config, shape.model);
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(options.dtype);
    parameters.allocate_grads(options.grad_dtype(), ranks.symmetric_memory());
    load_or_initialize(options, parameters);
    AdamW optimizer(parameters, options.optimizer);
    TrainingState state = resume_or_start(options, optimizer);
    const int64_t first_step = state.step;
    const std::unique_ptr<GradientSync> sync = make_sync(chapter.sync, parameters, ranks);
    std::optional<DiLoCo> diloco;
    if (chapter.sync.kind == SyncKind::diloco) diloco.emplace(parameters, optimizer, ranks, chapter.sync.diloco);
    const bool every_time = chapter.every_time(options);
    const Tensor sums = every_time ? Tensor::empty(parameters.flat_grads().shape(), options.grad_dtype(), Memory::gradient) : Tensor();

    Report report("01_data_parallel", options, shape, options.steps);
    report.configuration(G, describe_data(options, file, loader, state));
    report.technique("sync", describe(chapter.sync, every_time), {{"dp", N}});
    if (validation)
        print(
            fmt::format("  valid.  {}{}", validation->description(), diloco ? "; between two meetings the weights are rank 0's own" : ""));
    const Saves saves(options, [&](const std::string& dir) {
        SaveOptions what{.dtype = options.dtype, .spread_over = &ranks};
        // With DiLoCo each rank has moments of its own: the weights only.
        if (!diloco) what.state = &state, what.optimizer = optimizer.states();
        save_checkpoint(dir, config, parameters, what);
    });
    saves.print_plan(state);
    std::optional<Verifier> verifier;
    if (wants_verification(options, config))
        verifier.emplace(options, config, loader, std::vector<int64_t>(size_t(std::min(options.steps, verified_steps)), G));
    ExplainHooks explain_hooks(sync.get());
    memory_reset_peak();
    chapter.slow_down();
    ranks.barrier();  // the verifying run kept rank 0 busy
    communication_reset_counts();

    for (int64_t s = 0; s < options.steps; ++s) {
        SectionSpan step("step", state.step + 1);
        const double begin = now_seconds(), lr = learning_rate_of(options, first_step, state.step);
        // The loss is a mean over the whole global batch; with DiLoCo every rank trains for itself, on the mean over its own part.
        const auto own_part = [&](int64_t m) { return state.next_sample + (m * N + ranks.rank()) * B; };
        int64_t counted = diloco ? 0 : counted_targets(loader, state.next_sample, G);
        for (int64_t m = 0; diloco && m < accumulated; ++m) counted += counted_targets(loader, own_part(m), B);
        const bool explained = options.explain && s == 0;
        explain_enable(explained);

        explain("gradients begin anew");
        parameters.clear_grads();
        const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        for (int64_t m = 0; m < accumulated; ++m) {
            const SectionSpan micro_batch("micro-batch", m);
            const bool synchronize = every_time || m + 1 == accumulated;
            const Batch batch = to_device(loader.batch(own_part(m), B));
            Context context{.batch = batch, .loss_scale = float(1 / double(counted)), .loss = loss, .micro_batch = int(m)};
            context.hooks = explained ? static_cast<Hooks*>(&explain_hooks) : sync.get();
            Saved saved;
            sync->begin_micro_batch(synchronize);
            phase("forward", [&] { model.forward({}, saved, context); });
            phase("backward", [&] { model.backward({}, saved, context); });
            if (synchronize) phase("wait for gradients", [&] { sync->finish(); });
            if (every_time) {
                m == 0 ? ops::copy(sums, parameters.flat_grads()) : ops::add(sums, parameters.flat_grads());
                parameters.clear_grads();
            }
        }
        if (every_time) ops::copy(parameters.flat_grads(), sums);
        if (verifier)
            phase("verification",
                  [&] { verifier->gradient(s, parameters.parts(&Parameter::grad)); });
        explain("global gradient norm, clip, AdamW");
        const Tensor squared_norm =
            phase("gradient norm", [&] { return squared_gradient_norm(parameters); });
        phase("update", [&] { optimizer.step(lr, squared_norm); });
        if (diloco) phase("outer step", [&] { diloco->after_step(s + 1, s + 1 == options.steps); });
        phase("loss", [&] { ranks.all_reduce(loss, diloco ? Reduce::average : Reduce::sum); });
        const double loss_value = scalar(loss), squared = scalar(squared_norm);  // here the host waits for the device
        explain_enable(false);
        step.end();

        state = after_step(state, options, file, G, T);
        StepRecord record{state.step, loss_value, std::sqrt(squared), lr, now_seconds() - begin, G * T};
        if (validation && validation->due(state.step, s + 1 == options.steps)) record.val_loss = validation->loss(model);
        report.step(record);
        if (verifier) verifier->after_step(s, loss_value, parameters.parts(&Parameter::value));
        saves.after_step(state.step);
    }
    if (validation && options.steps == 0) report.validation(state.step, validation->loss(model));  // of what --load brought

    bool ok = true;
    if (options.steps > 0) {
        if (verifier) ok = verifier->finish(report) || diloco;
        if (verifier && diloco) {
            print("  not meant to be equal: DiLoCo is another algorithm, its ranks train apart between the outer steps");
            report.text("verify", "result", "not meant to be equal");
        }
        MemoryEstimate predicted = predict_memory(options, chapter, shape);
        predicted.peak_communication += sync->buffer_bytes();
        ok = report.memory(predicted) && ok;
        PredictedCommunication of_run = sync->predicted().times(options.steps * (every_time ? accumulated : 1));
        of_run.add(Collective::all_reduce, options.steps, options.steps * 8, ranks.size());  // the loss
        if (diloco) diloco->add_to(of_run, options.steps);
        ok = report.communication_of_run(of_run, options.steps) && ok;
        if (diloco) diloco->print_savings(report, options.steps, B * accumulated * T, options.grad_dtype());
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
            parse_options(argc, argv, "01_data_parallel", "Train a Llama on several devices, each with a part of the batch.",
                          [&](OptionList& list, const Options& shared) { chapter.add_options(list, shared); });
        chapter.check_and_find_nodes(options, Communicator::world());
        if (!chapter.demo.empty() || chapter.compare) chapter.slow_down();
        if (chapter.demo == "collectives" && !options.json.empty())
            user_error("--json: --demo collectives has no figures to write; --demo bandwidth has");
        if (chapter.demo == "collectives") return demo_collectives(Communicator::world());
        if (chapter.demo == "bandwidth") {
            const double mib = chapter.largest_mib > 0 ? chapter.largest_mib : (device_is_gpu() ? 1024 : 16);
            return demo_bandwidth(options, Communicator::world(), int64_t(mib * (1 << 20)));
        }
        const LlamaConfig config = options.config();
        const StepShape shape = step_shape(options, config);
        const MemoryEstimate needed = predict_memory(options, chapter, shape);
        if (needed.total() > memory_limit()) {
            const int64_t of_technique = needed.total() - estimate_memory(shape).total();  // whatever the batch
            const char* without = chapter.sync.kind == SyncKind::diloco ? "; another --sync needs less"
                                  : chapter.every_time(options)         ? "; --no-sync on needs less"
                                                                        : "";
            check_fits(needed, memory_limit(), what_would_fit(shape, memory_limit() - of_technique) + without);
        }
        if (chapter.compare) return compare_syncs(options, chapter.sync, shape, chapter.node_size > 0);
        return train_within_memory(options, [&] { return train(options, chapter, shape); });
    });
}
