// --compare: a few steps without and with sequence parallelism, on the same data, and one table: what a rank holds, what it sends, how
// long a step takes (means).
#pragma once

#include <algorithm>

#include "data.h"
#include "predict.h"
#include "setup.h"
#include "tensor_parallel.h"
#include "trace.h"
#include "training.h"

namespace ultrascale {

// All ranks call it; rank 0 prints. False if a variant held or sent other than predicted, on any rank.
inline bool compare_sequence_parallel(const Options& options, const TensorOptions& given, const StepShape& shape) {
    const Communicator& world = Communicator::world();
    const auto variant = [&](bool sequence_parallel, bool keep_gathered) {
        TensorOptions tensor = given;
        tensor.sequence_parallel = sequence_parallel, tensor.keep_gathered = keep_gathered;
        tensor.partition_checkpoints = given.partition_checkpoints && !sequence_parallel;
        check_fits(shape, tensor, memory_limit());
        return tensor;
    };
    const std::pair<const char*, TensorOptions> variants[] = {
        {"TP", variant(false, false)}, {"TP + SP", variant(true, false)}, {"TP + SP, inputs kept", variant(true, true)}};
    const Mesh mesh(world, {{"dp", world.size() / given.tp}, {"tp", given.tp}});
    const Communicator &dp = mesh.group("dp"), &tp = mesh.group("tp");
    const int64_t B = options.micro_batch, N = dp.size(), A = options.grad_accum, warm_up = 2,
                  steps = std::clamp<int64_t>(options.steps, 3, 10);
    const TokenFile file(options.data_path(), shape.config.vocab);
    const DataLoader loader(file, data_options(options, shape.seq));
    const float loss_scale = float(1 / double(loader.counted_targets(0, sequences_of_step(options, N))));
    print(fmt::format("tp {} x dp {}, overlap {}; {:.3f} M parameters in {}; {} x {} tokens a micro-batch, {} a step", given.tp, N,
                      overlap_names[int(given.overlap)], double(parameter_count(shape.config)) / 1e6,
                      dtype_name(shape.model.dtype), B, shape.seq, A));
    print(fmt::format("  {:<21} {:>10} {:>10} {:>10} {:>11}", "what a rank holds", "parameters", "gradients", "optimizer",
                      "activations"));
    std::vector<std::string> sends = {fmt::format("  {:<21} {:>10} {:>10} {:>10} {:>9} {:>9} {:>9}", "what it sends a step",
                                                  "all-reduce", "all-gather", "red.-scat.", "comm. ms", "exposed", "step ms")};
    Report report("03_tensor_parallel", options, shape, 0);
    bool ok = true;
    for (const auto& [name, tensor] : variants) {
        const TensorParallel parallel(shape.config, tensor, mesh, options.seed);
        Llama model(shape.config, shape.model, parallel.parts(shape.model), Stage::whole(shape.config));
        ParameterList& parameters = model.parameters();
        parameters.allocate_values(options.dtype);
        parameters.allocate_grads(options.grad_dtype(), dp.symmetric_memory());
        load_or_initialize(options, parameters);
        AdamW optimizer(parameters, options.optimizer);
        double seconds = 0;
        for (int64_t s = 0; s < warm_up + steps; ++s) {
            if (s == warm_up) {
                memory_reset_peak();
                communication_reset_counts();
            }
            const double begin = now_seconds();
            parameters.clear_grads();
            const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
            for (int64_t m = 0; m < A; ++m) {
                Context context{.batch = to_device(loader.batch((m * N + dp.rank()) * B, B)), .loss_scale = loss_scale, .loss = loss};
                Saved saved;
                model.forward({}, saved, context);
                model.backward({}, saved, context);
            }
            all_reduce_gradients(parameters, dp);
            parallel.sum_copies(parameters);
            optimizer.step(0, squared_gradient_norm(parameters, tp));  // lr 0: the model stays as it is
            if (N > 1) dp.all_reduce(loss);
            loss.to_host<double>();  // the host waits for the device
            if (s >= warm_up) seconds += now_seconds() - begin;
        }

        const MemoryEstimate want = predict_memory(shape, tensor, tp.rank());
        const PredictedCommunication sent = predict_communication(shape, tensor, A, N, tp.rank());
        const MemoryByCategory held = memory_now();
        const int64_t activations = memory_peak_by_category()[int(Memory::activation)];
        bool same = counted_as_predicted(sent, steps) && held[int(Memory::parameter)] == want.parameters &&
                    held[int(Memory::gradient)] == want.gradients && held[int(Memory::optimizer)] == want.optimizer &&
                    std::abs(double(activations - want.peak_activations)) <= 0.01 * double(want.peak_activations);
        const CommunicationCounts counts = communication_counts();
        CommunicationCount all{};
        for (int k = 0; k < collective_kinds; ++k) {
            const CommunicationCount& c = counts[size_t(k)];
            all.seconds += c.seconds, all.exposed += c.exposed;
        }
        same = on_all_ranks(world, same);
        ok = ok && same;
        const double n = double(steps);
        const auto sent_by = [&](Collective kind) { return counts[size_t(kind)].sent / n; };
        const auto bytes_of = [&](Memory category) { return format_bytes(double(held[int(category)])); };
        print(fmt::format("  {:<21} {:>10} {:>10} {:>10} {:>11}   {}", name, bytes_of(Memory::parameter), bytes_of(Memory::gradient),
                          bytes_of(Memory::optimizer), format_bytes(double(activations)), same ? "as predicted" : "NOT as predicted"));
        sends.push_back(fmt::format("  {:<21} {:>10} {:>10} {:>10} {:>9.2f} {:>9.2f} {:>9.2f}", name,
                                    format_bytes(sent_by(Collective::all_reduce)), format_bytes(sent_by(Collective::all_gather)),
                                    format_bytes(sent_by(Collective::reduce_scatter)), all.seconds * 1e3 / n, all.exposed * 1e3 / n,
                                    seconds * 1e3 / n));
        report.row({{"variant", name},
                    {"parameter_bytes", held[int(Memory::parameter)]},
                    {"gradient_bytes", held[int(Memory::gradient)]},
                    {"optimizer_bytes", held[int(Memory::optimizer)]},
                    {"peak_activation_bytes", activations},
                    {"sent_bytes", bytes_sent_in_all(counts) / n},
                    {"step_ms", seconds * 1e3 / n},
                    {"communication_ms", all.seconds * 1e3 / n},
                    {"exposed_ms", all.exposed * 1e3 / n},
                    {"as_predicted", same}});
    }
    print("");
    for (const std::string& line : sends) print(line);
    report.text("compare", "result", ok ? "as predicted" : "not as predicted");
    report.finish();
    return ok;
}

}  // namespace ultrascale
