// Chapter 03: tensor parallelism. The ranks of a group share every layer: each holds a part of its weights and computes with them
// (tensor_parallel.h and the file of each part); groups train on different samples. The step is written out in train() below.
#include <cmath>
#include <optional>

#include "checkpoint.h"
#include "compare.h"
#include "data.h"
#include "explain.h"
#include "layer_communication.h"
#include "linear_demo.h"
#include "overlap_ratio.h"
#include "predict.h"
#include "saves.h"
#include "setup.h"
#include "tensor_parallel.h"
#include "training.h"
#include "validation.h"
#include "verify.h"

using namespace ultrascale;

namespace {

struct Chapter {
    TensorOptions tensor;
    bool compare = false;
    std::string demo;

    void add_options(OptionList& options, const Options&) {
        options.add("--tp", tensor.tp, "Ranks that share each layer; must divide the number of ranks. Default: all").between(1, 1 << 20);
        options.flag("--sequence-parallel", tensor.sequence_parallel, "Norms, residuals and dropout on 1/tp of the tokens");
        options
            .choice("--keep-gathered", tensor.keep_gathered, {{"on", true}, {"off", false}},
                    "With --sequence-parallel: keep a column linear's gathered input (on) or gather it again in backward (off)")
            .only_if([this] { return tensor.sequence_parallel; }, "only --sequence-parallel gathers a linear's input");
        options.choice("--overlap", tensor.overlap, {{"none", Overlap::none}, {"async", Overlap::async}, {"chunk", Overlap::chunk}},
                       "What communication runs under: nothing; the weight's gradient; besides, the rest of its own GEMM");
        options.add("--chunks", tensor.chunks, "Of --overlap chunk: parts of a GEMM")
            .between(2, 64)
            .only_if([this] { return tensor.overlap == Overlap::chunk; }, "it is for --overlap chunk")
            .show_default();
        options.flag("--partition-checkpoints", tensor.partition_checkpoints,
                     "With --recompute full: each rank keeps 1/tp of a layer's input");
        options.add("--dropout", tensor.dropout, "Probability that an element of the residual stream's summands is dropped")
            .between(0, 0.99);
        options
            .choice("--same-seed", tensor.same_seed, {{"on", true}, {"off", false}},
                    "Of --dropout: an element's mask does not depend on the rank (on), or each rank draws its own (off)")
            .only_if([this] { return tensor.dropout > 0; }, "there is nothing random without --dropout");
        options.flag("--compare", compare, "Train without and with sequence parallelism and print one table")
            .excludes(training_outputs)
            .excludes({"--sequence-parallel", "--keep-gathered"});
        options.add("--demo", demo, "linear: a column and a row linear on matrices small enough to print")
            .one_of({"linear"})
            .excludes(training_outputs)
            .excludes({"--compare"});
    }

    void check_options(const Options& options) {
        const int ranks = Communicator::world().size();
        if (tensor.tp == 0) tensor.tp = ranks;
        if (ranks % tensor.tp != 0)
            user_error("--tp {}: {} ranks cannot be cut into groups of {}, which must divide them", tensor.tp, ranks, tensor.tp);
        if (tensor.tp == 1) tensor.sequence_parallel = tensor.keep_gathered = tensor.partition_checkpoints = false;  // nobody to share with
        if (tensor.partition_checkpoints && (options.recompute != Recompute::full || tensor.sequence_parallel))
            user_error(
                "--partition-checkpoints: needs --recompute full, and no --sequence-parallel, with which the checkpoints are shards "
                "already");
        if (compare && tensor.tp == 1) user_error("--compare: one rank has nobody to share a layer with; --tp 2 or more");
        if (compare) tensor.sequence_parallel = true;  // so that what it needs is checked
    }
};

// How far the ranks' copies of the norms' weights are apart: the largest difference from rank 0's.
double largest_difference_of_copies(const ParameterList& parameters) {
    double largest = 0;
    for (const auto& p : parameters) {
        if (!p->is_norm) continue;
        const Tensor first = Tensor::empty(p->value.shape(), p->value.dtype(), Memory::workspace);
        ops::copy(first, p->value);
        Communicator::world().broadcast(first, 0);
        const std::vector<float> a = first.to_host_float(), b = p->value.to_host_float();
        for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, double(std::abs(a[i] - b[i])));
    }
    return largest_of_ranks(Communicator::world(), largest);
}

// Trains; false if the run is not what one plain device does, or held or sent other than predicted.
bool train(const Options& options, const TensorOptions& tensor, const StepShape& shape) {
    const LlamaConfig& config = shape.config;
    const Mesh mesh(Communicator::world(), {{"dp", Communicator::world().size() / tensor.tp}, {"tp", tensor.tp}});
    const Communicator &dp = mesh.group("dp"), &tp = mesh.group("tp");
    const int64_t B = options.micro_batch, T = shape.seq, N = dp.size(), accumulated = options.grad_accum,
                  G = sequences_of_step(options, N);
    const TokenFile file(options.data_path(), config.vocab);
    const DataOptions data = data_options(options, T);
    const DataLoader loader(file, data);
    std::optional<Validation> validation;
    if (!options.val_data.empty()) validation.emplace(options, config.vocab, data);

    // This rank's part of the model, and an optimizer for it.
    const TensorParallel parallel(config, tensor, mesh, options.seed);
    Llama model(config, shape.model, parallel.parts(shape.model), Stage::whole(config));
    ParameterList& parameters = model.parameters();
    parameters.allocate_values(options.dtype);
    parameters.allocate_grads(options.grad_dtype(), dp.symmetric_memory());
    load_or_initialize(options, parameters);
    AdamW optimizer(parameters, options.optimizer);
    TrainingState state = resume_or_start(options, optimizer);
    const int64_t first_step = state.step;

    Report report("03_tensor_parallel", options, shape, options.steps);
    report.configuration(G, describe_data(options, file, loader, state), N);
    report.technique("tensor", describe(tensor, N, B * T), {{"tp", tensor.tp}, {"dp", N}});
    if (validation) print(fmt::format("  valid.  {}", validation->description()));
    const Saves saves(options, [&](const std::string& dir) {
        save_checkpoint(dir, config, parameters,
                        {.dtype = options.dtype,
                         .state = &state,
                         .optimizer = optimizer.states(),
                         .spread_over = &Communicator::world()});
    });
    saves.print_plan(state);
    std::optional<Verifier> verifier;
    if (wants_verification(options, config))
        verifier.emplace(options, config, loader, std::vector<int64_t>(size_t(std::min(options.steps, verified_steps)), G),
                         [&](Parts& parts) {
                             add_dropout(parts, {float(tensor.dropout), options.seed});
                         });
    LayerCommunication layer_communication;
    ExplainHooks explain_hooks(&layer_communication);
    memory_reset_peak();
    Communicator::world().barrier();  // the verifying run kept rank 0 busy
    communication_reset_counts();

    for (int64_t s = 0; s < options.steps; ++s) {
        SectionSpan step("step", state.step + 1);
        const double begin = now_seconds(), lr = learning_rate_of(options, first_step, state.step);
        const int64_t counted = counted_targets(loader, state.next_sample, G);  // of the global batch: the loss is a mean over all of it
        const bool explained = options.explain && s == 0;
        explain_enable(explained);

        explain("gradients begin anew");
        parameters.clear_grads();
        const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        for (int64_t m = 0; m < accumulated; ++m) {  // the ranks of a tensor-parallel group take the same samples
            const SectionSpan micro_batch("micro-batch", m);
            const Batch batch = to_device(loader.batch(state.next_sample + (m * N + dp.rank()) * B, B));
            Context context{.batch = batch, .loss_scale = float(1 / double(counted)), .loss = loss, .micro_batch = int(m)};
            if (s == 0) context.hooks = explained ? static_cast<Hooks*>(&explain_hooks) : &layer_communication;
            Saved saved;
            phase("forward", [&] { model.forward({}, saved, context); });
            phase("backward", [&] { model.backward({}, saved, context); });
        }
        explain("gradients: sum over data parallel ranks, and over those that hold copies");
        phase("sum gradients", [&] {
            all_reduce_gradients(parameters, dp);
            parallel.sum_copies(parameters);
        });
        if (verifier)
            phase("verification",
                  [&] { verifier->gradient(s, parameters.parts(&Parameter::grad)); });
        explain("global gradient norm, clip, AdamW");
        const Tensor squared_norm =
            phase("gradient norm", [&] { return squared_gradient_norm(parameters, tp); });
        phase("update", [&] { optimizer.step(lr, squared_norm); });
        // The ranks of a tensor-parallel group know the same loss.
        if (N > 1) phase("loss", [&] { dp.all_reduce(loss); });
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
        if (verifier) ok = verifier->finish(report) || !tensor.same_seed;
        if (verifier && !tensor.same_seed) {
            print("  not meant to be equal: each rank drops other elements");
            report.text("verify", "result", "not meant to be equal");
        }
        ok = report.memory(predict_memory(shape, tensor, tp.rank())) && ok;
        const int64_t largest = largest_micro_batch(shape, tensor, memory_limit());
        report.value("fits", "largest_micro_batch", double(largest));
        if (report.full()) {
            print_layer_formula(shape, tensor, tp.rank());
            print(fmt::format("  the largest micro-batch for {}, by formula: {}", format_bytes(double(memory_limit())), largest));
        }
        ok = report.communication(predict_communication(shape, tensor, accumulated, N, tp.rank()), options.steps,
                                  validation ? validation->sent() : CommunicationCounts{}) &&
             ok;
        if (tensor.tp > 1) layer_communication.add_to(report);
        const double apart = largest_difference_of_copies(parameters);
        const bool copies_equal = apart == 0 || !tensor.same_seed;
        if (report.full() || apart > 0)
            print(fmt::format("  copies of the norms' weights on the ranks: largest difference {:.3g}{}", apart,
                              copies_equal ? "" : "   MISMATCH"));
        report.value("copies", "largest_difference", apart);
        ok = ok && copies_equal;
        if (report.full()) {
            parallel.shapes().print_table(B * T, tensor.tp);
            print_overlap_ratio(report, tp, B * T, config.hidden, options.dtype);
        }
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
        const Options options = parse_options(argc, argv, "03_tensor_parallel", "Train a Llama whose layers are shared by several devices.",
                                              [&](OptionList& list, const Options& shared) { chapter.add_options(list, shared); });
        if (chapter.demo == "linear" && !options.json.empty()) user_error("--json: --demo linear has no figures to write");
        if (chapter.demo == "linear") return demo_linear(Communicator::world());
        chapter.check_options(options);
        const LlamaConfig config = options.config();
        const StepShape shape = step_shape(options, config);
        check_splits(config, chapter.tensor, shape.micro_batch, shape.seq);
        if (chapter.compare) return compare_sequence_parallel(options, chapter.tensor, shape);
        check_fits(shape, chapter.tensor, memory_limit());
        return train_within_memory(options, [&] { return train(options, chapter.tensor, shape); });
    });
}
