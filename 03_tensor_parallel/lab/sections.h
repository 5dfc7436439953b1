// What is printed of a training: its description, the report's sections that only this chapter has,
// and --estimate's report.
#pragma once

#include "../8_tensor_parallel.h"
#include "block_picture.h"
#include "core/ops.h"
#include "lab/measure/kept_terms.h"
#include "lab/measure/layer_communication.h"
#include "lab/report/report.h"
#include "overlap_ratio.h"
#include "predict.h"
#include "sampling.h"
#include "shapes.h"
#include "shared_options.h"
#include "train/run.h"

namespace ultrascale::tensor_parallel {

// How much the ranks' copies of what all of them hold, such as norms, differ: the largest
// difference from rank 0's.
inline double largest_difference_of_copies(const ParameterList& parameters) {
    double largest = 0;
    for (const auto& p : parameters) {
        if (!p->split_over.empty()) continue;
        const Tensor first = Tensor::empty(p->value.shape(), p->value.dtype(), Memory::workspace);
        ops::copy(first, p->value);
        Communicator::world().broadcast(first, 0);
        const std::vector<float> a = first.to_host_float(), b = p->value.to_host_float();
        for (size_t i = 0; i < a.size(); ++i)
            largest = std::max(largest, double(std::abs(a[i] - b[i])));
    }
    return largest_of_ranks(Communicator::world(), largest);
}

// Returns false if copies differ that must be equal.
inline bool print_copies(Report& report, const ParameterList& parameters, bool same_seed) {
    const double apart = largest_difference_of_copies(parameters);
    const bool ok = apart == 0 || !same_seed;
    if (report.full() || apart > 0)
        print(
            fmt::format("  copies of the norms' weights on the ranks: largest difference {:.3g}{}",
                        apart, ok ? "" : "   MISMATCH"));
    report.value("copies", "largest_difference", apart);
    return ok;
}

inline void print_largest_micro_batch(Report& report, int64_t largest) {
    report.value("fits", "largest_micro_batch", double(largest));
    if (report.full())
        print(fmt::format("  the largest micro-batch for {}, by formula: {}",
                          format_bytes(double(memory_limit())), largest));
}

// --estimate: the rank's parameters are only described; nothing is allocated.
inline void print_estimate(const Options& options, const TensorOptions& tensor,
                           const StepShape& shape) {
    const Communicator& world = Communicator::world();
    Mesh mesh(world, {{"dp", world.size() / tensor.tp}, {"tp", tensor.tp}});
    const Communicator &dp = mesh.group("dp"), &tp = mesh.group("tp");
    const TensorParallel parallel(shape.config, tensor, mesh);
    Llama model(shape.config, shape.model, parallel.factories(shape.model),
                Stage::whole(shape.config));
    const ParameterList& parameters = model.parameters();
    Report report("03_tensor_parallel", options, shape, 0);
    report.configuration(sequences_of_step(options, dp.size()), "", dp.size());
    const int64_t rows = shape.micro_batch * shape.seq;
    report.technique("tensor", describe(tensor, dp.size(), rows, options.dropout),
                     {{"tp", tensor.tp}, {"dp", dp.size()}});
    report.estimate(
        predict(shape, tensor, parameters, options.grad_accum, dp.size(), tp.rank()), 1,
        [&] { return what_needs_less(shape, tensor, parameters, tp.rank(), memory_limit()); });
    report.finish();
}

// What this rank holds if other layers of the shape recompute.
inline auto memory_by_shape(const TensorOptions& tensor, const StepShape& shape) {
    const Communicator& world = Communicator::world();
    Mesh mesh(world, {{"dp", world.size() / tensor.tp}, {"tp", tensor.tp}});
    const TensorParallel parallel(shape.config, tensor, mesh);
    Llama model(shape.config, shape.model, parallel.factories(shape.model),
                Stage::whole(shape.config));
    Prediction prediction;
    add_parameters(prediction, model.parameters().local_numel(), shape);
    return [=, rank = mesh.group("tp").rank(),
            memory = prediction.memory](const StepShape& changed) mutable {
        memory.peak_activations = peak_activation_bytes(changed, tensor, rank);
        return memory;
    };
}

// What a run trains, and its description in the header. `sent` and `kept` watch the layers.
inline TrainingSetup setup(Llama& model, Updater& updater, const Options& options,
                           const StepShape& shape, const TensorOptions& tensor, const Mesh& mesh,
                           LayerCommunication& sent, KeptTerms& kept) {
    const Communicator &dp = mesh.group("dp"), &tp = mesh.group("tp");
    const int64_t tokens = shape.micro_batch * shape.seq;
    TrainingSetup what = training_setup(model, updater);
    what.label = "tensor", what.technique = describe(tensor, dp.size(), tokens, options.dropout);
    what.layout = {{"tp", tensor.tp}, {"dp", dp.size()}};
    const int64_t multiple = tensor.sequence_parallel ? tensor.tp : 1;
    what.next_token = [&model, &tp, vocab = shape.config.vocab, multiple](const HostBatch& text) {
        return logits_of_next(model, text, vocab, tp, multiple);
    };
    if (!tensor.same_seed) what.not_equal = "each rank drops other elements";
    // In halves, the messages of two layers alternate.
    if (tensor.overlap != Overlap::halves) what.watch = {&sent, &kept};
    return what;
}

// All of the report but verification. Returns false if something differs from its prediction.
inline bool print_sections(Report& report, const Run& run, const Options& options,
                           const StepShape& shape, const TensorOptions& tensor, const Mesh& mesh,
                           const ParameterList& parameters, const ShapeTable& shapes,
                           const LayerCommunication& sent, const KeptTerms& kept) {
    const Communicator &dp = mesh.group("dp"), &tp = mesh.group("tp");
    const int64_t tokens = shape.micro_batch / parts_of_micro_batch(tensor) * shape.seq;
    const Prediction predicted =
        predict(shape, tensor, parameters, options.grad_accum, dp.size(), tp.rank());
    bool ok = report.memory(predicted);
    if (report.full() && !shape.config.latent) print_layer_formula(shape, tensor, tp.rank());
    print_largest_micro_batch(
        report, largest_micro_batch(shape, tensor, parameters, tp.rank(), memory_limit()));
    ok = report.communication(predicted, options.steps, run.validation_communication()) && ok;
    if (tensor.tp > 1 && tensor.overlap != Overlap::halves) sent.add_to(report);
    ok = print_copies(report, parameters, tensor.same_seed) && ok;
    if (report.full()) {
        if (kept.applies() && tensor.overlap != Overlap::halves) ok = kept.print_table() && ok;
        shapes.print_table(tokens, tensor.tp);
        print_overlap_ratio(report, tp, tokens, shape.config.hidden, options.dtype);
    }
    report.throughput(predicted);
    if (draws(options.svg) && tensor.tp > 1)
        BlockPicture(shapes, sent, tensor, tokens).draw(options.svg);
    return ok;
}

}  // namespace ultrascale::tensor_parallel
