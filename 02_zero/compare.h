// --compare: a few steps with each stage on the same data, and one table: what a rank holds, what it sends, how long a step takes
// (means).
#pragma once

#include <algorithm>
#include <vector>

#include "data.h"
#include "predict.h"
#include "stages.h"
#include "trace.h"
#include "training.h"

namespace ultrascale {

// All ranks call it; rank 0 prints. False if a stage held or sent other than predicted, on any rank.
inline bool compare_stages(const Options& options, ZeroOptions zero_options, const StepShape& shape) {
    const Communicator& ranks = Communicator::world();
    const int64_t B = options.micro_batch, N = ranks.size(), A = options.grad_accum, warm_up = 2,
                  steps = std::clamp<int64_t>(options.steps, 3, 10);
    const TokenFile file(options.data_path(), shape.config.vocab);
    const DataLoader loader(file, data_options(options, shape.seq));
    const float loss_scale = float(1 / double(loader.counted_targets(0, sequences_of_step(options, N))));
    const double psi = double(parameter_count(shape.config)) * double(dtype_bytes(shape.grad_dtype));
    const bool offload_too = zero_options.offload;
    zero_options.stage = 0, zero_options.offload = false;  // the variant that needs most, and the first one below
    {
        Llama model(shape.config, shape.model);
        const std::unique_ptr<Zero> zero = make_zero(model, ranks, options, zero_options);
        check_fits(predict_memory(zero->layout(), model.units(), zero_options, shape, A, ranks.rank()), memory_limit(),
                   "stage 0 is compared, too; a smaller --micro-batch or --recompute full needs less");
    }
    print(fmt::format("{}, {:.3f} M parameters in {}, gradients {}; {} x {} tokens a micro-batch, {} a step",
                      format_count(N, "rank"), double(parameter_count(shape.config)) / 1e6,
                      dtype_name(shape.model.dtype), dtype_name(shape.grad_dtype), B, shape.seq, A));
    print(fmt::format("  {:<6} {:>10} {:>10} {:>10} {:>10} {:>10}   {:>10} {:>5}", "stage", "parameters", "gradients",
                      "optimizer", "on host", "gathered", "sent", "x Psi"));
    std::vector<std::string> times = {fmt::format("  {:<6} {:>10} {:>10} {:>10}", "stage", "step ms", "comm. ms", "exposed")};
    Report report("02_zero", options, shape, 0);
    bool ok = true;
    for (int variant = 0; variant <= (offload_too ? 6 : 3); ++variant) {
        zero_options.stage = variant <= 3 ? variant : variant - 3;
        zero_options.offload = variant > 3;
        Llama model(shape.config, shape.model);
        const std::unique_ptr<Zero> zero = make_zero(model, ranks, options, zero_options);
        zero->start();
        double seconds = 0;
        for (int64_t s = 0; s < warm_up + steps; ++s) {
            if (s == warm_up) {
                zero->finish();
                memory_reset_peak();
                communication_reset_counts();
            }
            const double begin = now_seconds();
            zero->begin_step();
            const Tensor loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
            for (int64_t m = 0; m < A; ++m) {
                Context context{.batch = to_device(loader.batch((m * N + ranks.rank()) * B, B)), .loss_scale = loss_scale, .loss = loss};
                context.hooks = zero.get();
                Saved saved;
                zero->begin_micro_batch(m, m + 1 == A);
                model.forward({}, saved, context);
                model.backward({}, saved, context);
                zero->end_micro_batch();
            }
            const Tensor squared_norm = zero->squared_norm();
            zero->update(0, squared_norm);  // lr 0: the model stays as it is
            ranks.all_reduce(loss);
            loss.to_host<double>();  // the host waits for the device
            if (s >= warm_up) seconds += now_seconds() - begin;
        }
        zero->finish();

        const MemoryEstimate want = predict_memory(zero->layout(), model.units(), zero_options, shape, A, ranks.rank());
        const PredictedCommunication sent = predict_communication(zero->layout(), model.units(), zero_options, shape, A, int(N));
        const MemoryByCategory held = memory_now();
        const int64_t gathered = memory_peak_by_category()[int(Memory::communication)];
        bool same = counted_as_predicted(sent, steps) && held[int(Memory::parameter)] == want.parameters &&
                    held[int(Memory::gradient)] == want.gradients && held[int(Memory::optimizer)] == want.optimizer &&
                    held[int(Memory::host)] == want.host && gathered == want.peak_communication;
        const CommunicationCounts counts = communication_counts();
        CommunicationCount all{};
        double psis = 0;  // sent, in Psi; gathered parameters are counted in elements, as gradients are
        for (size_t k = 0; k < counts.size(); ++k) {
            const CommunicationCount& c = counts[k];
            all.sent += c.sent, all.seconds += c.seconds, all.exposed += c.exposed;
            const bool values = Collective(k) == Collective::all_gather;
            psis += c.sent / psi * (values ? double(dtype_bytes(shape.grad_dtype)) / double(dtype_bytes(shape.model.dtype)) : 1);
        }
        same = on_all_ranks(ranks, same);
        ok = ok && same;
        const double n = double(steps);
        const std::string name = fmt::format("{}{}", zero_options.stage, zero_options.offload ? " host" : "");
        const auto bytes_of = [&](Memory category) { return format_bytes(double(held[int(category)])); };
        print(fmt::format("  {:<6} {:>10} {:>10} {:>10} {:>10} {:>10}   {:>10} {:>5.2f}   {}", name, bytes_of(Memory::parameter),
                          bytes_of(Memory::gradient), bytes_of(Memory::optimizer), bytes_of(Memory::host),
                          format_bytes(double(gathered)), format_bytes(all.sent / n), psis / n,
                          same ? "as predicted" : "NOT as predicted"));
        times.push_back(fmt::format("  {:<6} {:>10.2f} {:>10.2f} {:>10.2f}", name, seconds * 1e3 / n, all.seconds * 1e3 / n,
                                    all.exposed * 1e3 / n));
        report.row({{"stage", zero_options.stage},
                    {"offload", zero_options.offload},
                    {"parameter_bytes", held[int(Memory::parameter)]},
                    {"gradient_bytes", held[int(Memory::gradient)]},
                    {"optimizer_bytes", held[int(Memory::optimizer)]},
                    {"host_bytes", held[int(Memory::host)]},
                    {"gathered_bytes", gathered},
                    {"sent_bytes", all.sent / n},
                    {"sent_psi", psis / n},
                    {"step_ms", seconds * 1e3 / n},
                    {"communication_ms", all.seconds * 1e3 / n},
                    {"exposed_ms", all.exposed * 1e3 / n},
                    {"as_predicted", same}});
    }
    print(fmt::format("  x Psi: in parameters. For one micro-batch the book has 2, 2, 2, 3; times (n-1)/n = {:.3g} here",
                      double(N - 1) / double(N)));
    print("");
    for (const std::string& line : times) print(line);
    report.text("compare", "result", ok ? "as predicted" : "not as predicted");
    report.finish();
    return ok;
}

}  // namespace ultrascale
