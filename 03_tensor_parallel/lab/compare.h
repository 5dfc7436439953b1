// --compare: a few steps of the plain linears, and without and with sequence parallelism, on the
// same data, and one table: what a rank holds, what it sends, how long a step takes.
#pragma once

#include <algorithm>

#include "../8_tensor_parallel.h"
#include "lab/measure/measure.h"
#include "predict.h"

namespace ultrascale::tensor_parallel {

// All ranks call it; rank 0 prints. Returns false if, on any rank, a variant's memory or
// communication differs from its prediction.
inline bool compare_sequence_parallel(const Options& options, const TensorOptions& given,
                                      const StepShape& shape,
                                      const std::function<void(Step&, Llama&, Updater&, const Mesh&,
                                                               const TensorOptions&)>& train_step) {
    const Communicator& world = Communicator::world();
    const auto variant = [&](bool sequence_parallel, bool keep_gathered) {
        TensorOptions tensor = given;
        tensor.sequence_parallel = sequence_parallel, tensor.keep_gathered = keep_gathered;
        tensor.partition_checkpoints = given.partition_checkpoints && !sequence_parallel;
        return tensor;
    };
    TensorOptions plain = variant(false, false);
    plain.plain = true, plain.partition_checkpoints = false, plain.overlap = Overlap::none;
    const std::pair<const char*, TensorOptions> variants[] = {
        {"TP, plain", plain},
        {"TP", variant(false, false)},
        {"TP + SP", variant(true, false)},
        {"TP + SP, inputs kept", variant(true, true)}};
    Mesh mesh(world, {{"dp", world.size() / given.tp}, {"tp", given.tp}});
    const Communicator &dp = mesh.group("dp"), &tp = mesh.group("tp");
    for (const auto& [name, tensor] : variants) {
        const TensorParallel parallel(shape.config, tensor, mesh);
        Llama described(shape.config, shape.model, parallel.factories(shape.model),
                        Stage::whole(shape.config));
        check_fits(shape, tensor, described.parameters(), tp.rank(), memory_limit());
    }
    const int64_t B = options.micro_batch, N = dp.size(), A = options.grad_accum;
    const int64_t sequences = sequences_of_step(options, N);
    const TokenFile file(options.data_path(), shape.config.vocab);
    const DataLoader loader(file, data_options(options, shape));
    print(fmt::format(
        "tp {} x dp {}, overlap {}; {:.3f} M parameters in {}; {} x {} tokens a micro-batch, {} a "
        "step",
        given.tp, N, overlap_names[int(given.overlap)], double(parameter_count(shape.config)) / 1e6,
        dtype_name(shape.model.dtype), B, shape.seq, A));
    print(fmt::format("  {:<21} {:>10} {:>10} {:>10} {:>11}", "what a rank holds", "parameters",
                      "gradients", "optimizer", "activations"));
    std::vector<std::string> sends = {
        fmt::format("  {:<21} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9}", "what it sends a step",
                    "all-reduce", "all-gather", "red.-scat.", "comm. ms", "exposed", "step ms")};
    Report report("03_tensor_parallel", options, shape, 0);
    bool ok = true;
    for (const auto& [name, tensor] : variants) {
        const TensorParallel parallel(shape.config, tensor, mesh);
        Llama model(shape.config, shape.model, parallel.factories(shape.model),
                    Stage::whole(shape.config));
        ParameterList& parameters = model.parameters();
        parameters.allocate_values(options.dtype);
        parameters.allocate_grads(options.grad_dtype(), dp.symmetric_memory());
        PlainUpdater optimizer(parameters, options, &mesh);
        optimizer.start();
        const DataSlice slice{
            .micro_batch = B / parts_of_micro_batch(tensor), .count = N, .replica = dp.rank()};
        const Measured m = measure(loader, slice, sequences, options.steps, [&](Step& step) {
            train_step(step, model, optimizer, mesh, tensor);
        });

        const Prediction predicted = predict(shape, tensor, parameters, A, N, tp.rank());
        const MemoryEstimate& want = predicted.memory;
        const MemoryByCategory held = memory_now();
        const int64_t activations = memory_peak_by_category()[int(Memory::activation)];
        bool same = counted_as_predicted(predicted.communication, m.steps, m.counts) &&
                    held_as_predicted(want, held) &&
                    peak_as_predicted(want.peak_activations, activations);
        same = on_all_ranks(world, same);
        ok = ok && same;
        const auto sent_by = [&](Collective kind) {
            return m.counts[size_t(kind)].sent / double(m.steps);
        };
        const auto bytes_of = [&](Memory category) {
            return format_bytes(double(held[int(category)]));
        };
        print(fmt::format("  {:<21} {:>10} {:>10} {:>10} {:>11}   {}", name,
                          bytes_of(Memory::parameter), bytes_of(Memory::gradient),
                          bytes_of(Memory::optimizer), format_bytes(double(activations)),
                          same ? "as predicted" : "NOT as predicted"));
        sends.push_back(fmt::format("  {:<21} {:>10} {:>10} {:>10} {:>9.2f} {:>9.2f} {:>9.2f}",
                                    name, format_bytes(sent_by(Collective::all_reduce)),
                                    format_bytes(sent_by(Collective::all_gather)),
                                    format_bytes(sent_by(Collective::reduce_scatter)),
                                    m.communication_seconds * 1e3, m.exposed_seconds * 1e3,
                                    m.step_seconds * 1e3));
        report.row({{"variant", name},
                    {"parameter_bytes", held[int(Memory::parameter)]},
                    {"gradient_bytes", held[int(Memory::gradient)]},
                    {"optimizer_bytes", held[int(Memory::optimizer)]},
                    {"peak_activation_bytes", activations},
                    {"sent_bytes", m.sent_bytes},
                    {"step_ms", m.step_seconds * 1e3},
                    {"communication_ms", m.communication_seconds * 1e3},
                    {"exposed_ms", m.exposed_seconds * 1e3},
                    {"as_predicted", same}});
    }
    print("");
    for (const std::string& line : sends) print(line);
    report.text("compare", "result", ok ? "as predicted" : "not as predicted");
    report.finish();
    return ok;
}

}  // namespace ultrascale::tensor_parallel
