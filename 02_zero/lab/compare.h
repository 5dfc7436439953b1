// --compare: runs a few steps with each stage on the same data, and prints one table: what a rank
// holds, what it sends, and how long a step takes.
#pragma once

#include <algorithm>
#include <vector>

#include "../9_stages.h"
#include "comm/nodes.h"
#include "lab/measure/measure.h"
#include "picture.h"
#include "predict.h"

namespace ultrascale::zero {

// A row of the table.
struct Variant {
    std::string name;
    ZeroOptions zero;
};
// The stages, and if the options ask for them offloaded ones and stage 3's other ways to gather.
inline std::vector<Variant> variants_of(const ZeroOptions& given) {
    ZeroOptions plain = given;
    plain.offload = plain.keep_gathered = plain.muon = false, plain.cut = Cut::unit;
    plain.shard_size = plain.secondary_shard = 0;
    std::vector<Variant> variants;
    const auto add = [&](int stage, const char* what, bool offload, bool keep, Cut cut) {
        plain.stage = stage, plain.offload = offload, plain.keep_gathered = keep, plain.cut = cut;
        variants.push_back({fmt::format("{}{}", stage, what), plain});
    };
    for (int stage = 0; stage <= 3; ++stage) {
        if (stage == 1 && !given.every_micro_batch) {  // 1_plain.h does not do that
            add(1, "", false, false, Cut::unit);
            variants.back().name = "plain", variants.back().zero.plain = true;
            if (given.muon) {
                variants.push_back(variants.back());
                variants.back().name = "muon", variants.back().zero.muon = true;
            }
        }
        add(stage, "", false, false, Cut::unit);
    }
    if (given.keep_gathered) add(3, " kept", false, true, Cut::unit);
    if (given.cut == Cut::model) add(3, " one", false, false, Cut::model);
    for (int stage = 1; given.offload && stage <= 3; ++stage)
        add(stage, " host", true, false, Cut::unit);
    if (given.shard_size > 0) plain.shard_size = given.shard_size;
    for (int stage = 1; given.shard_size > 0 && stage <= 3; ++stage)
        add(stage, fmt::format(" of {}", given.shard_size).c_str(), false, false, Cut::unit);
    plain.shard_size = 0, plain.secondary_shard = given.secondary_shard;
    if (given.secondary_shard > 0) add(3, " 2nd", false, false, Cut::unit);
    return variants;
}

// The bytes that this rank's card sends to other nodes in calls with these counts, by the formulas
// of comm/nodes.h, of N ranks.
inline double bytes_across(const CommunicationCounts& counts, int N, const ZeroOptions& zero,
                           const Nodes& nodes) {
    const int S = zero.shard_size > 0 ? zero.shard_size : N;
    double bytes = 0;
    for (const auto& [group, kinds] : counts.groups) {
        const Spread spread = S < N && group == "dp" ? nodes.spread(S, 1)
                              : group == "replica"   ? nodes.spread(N / S, S)
                              : group == "secondary" ? nodes.spread(zero.secondary_shard, 1)
                                                     : nodes.spread(N, 1);
        for (size_t k = 0; k < collective_kinds; ++k)
            bytes += bytes_over_card(Collective(k), double(kinds[k].bytes), spread, nodes.crossing);
    }
    return bytes;
}

// All ranks call it; rank 0 prints. Returns false if, on any rank, a stage's memory or
// communication differs from its prediction.
inline bool compare_stages(const Options& options, const ZeroOptions& zero_options,
                           const StepShape& shape,
                           const std::function<void(Step&, Llama&, Updater&)>& train_step) {
    const Communicator& ranks = Communicator::world();
    const int64_t B = options.micro_batch, N = ranks.size(), A = options.grad_accum;
    const DataSlice slice{.micro_batch = B, .count = N, .replica = ranks.rank()};
    const int64_t sequences = sequences_of_step(options, N);
    const TokenFile file(options.data_path(), shape.config.vocab);
    const DataLoader loader(file, data_options(options, shape));
    const double psi =
        double(parameter_count(shape.config)) * double(dtype_bytes(shape.grad_dtype));
    const std::vector<Variant> variants = variants_of(zero_options);
    {  // the first variant needs most memory
        const ZeroOptions& stage0 = variants.front().zero;
        const Llama model(shape.config, shape.model);
        const Mesh mesh(ranks, {{"dp", ranks.size()}});
        check_fits(predict(model, stage0, shape, A, mesh).memory, memory_limit(), [] {
            return "--compare runs stage 0, too; a smaller --micro-batch or --recompute full "
                   "needs less";
        });
    }
    print(fmt::format(
        "{}, {:.3f} M parameters in {}, gradients {}; {} x {} tokens a micro-batch, {} a step",
        format_count(N, "rank"), double(parameter_count(shape.config)) / 1e6,
        dtype_name(shape.model.dtype), dtype_name(shape.grad_dtype), B, shape.seq, A));
    print(fmt::format("  {:<6} {:>10} {:>10} {:>10} {:>10} {:>10}   {:>10} {:>5}", "stage",
                      "parameters", "gradients", "optimizer", "on host", "gathered", "sent",
                      "x Psi"));
    std::vector<std::string> times = {
        fmt::format("  {:<6} {:>10} {:>10} {:>10}", "stage", "step ms", "comm. ms", "exposed")};
    const Nodes nodes = current_nodes();
    if (nodes.ranks > 0) times.front() += fmt::format(" {:>13}", "across nodes");
    Report report("02_zero", options, shape, 0);
    StagesPicture picture;
    bool ok = true;
    for (const auto& [name, zero_options] : variants) {
        const Mesh mesh(ranks, data_axes(ranks.size(), zero_options));
        Llama model(shape.config, shape.model);
        sum_over_replicas(model.parameters(), mesh);
        Options own = options;
        own.optimizer.muon = zero_options.muon;
        const std::unique_ptr<Updater> zero = make_zero(model, mesh, own, zero_options);
        zero->start();
        const Measured m = measure(
            loader, slice, sequences, options.steps,
            [&](Step& step) { train_step(step, model, *zero); }, [&] { zero->finish(); });

        const Prediction predicted = predict(model, zero_options, shape, A, mesh);
        const MemoryEstimate& want = predicted.memory;
        const MemoryByCategory held = memory_now();
        const int64_t gathered = memory_peak_by_category()[int(Memory::communication)];
        bool same = counted_as_predicted(predicted.communication, m.steps, m.counts) &&
                    held_as_predicted(want, held) && held[int(Memory::host)] == want.host &&
                    gathered == want.peak_communication;
        // The elements sent, in units of Psi, whatever the dtypes of parameters and gradients.
        double psis = 0;
        for (size_t k = 0; k < collective_kinds; ++k) {
            const bool values = Collective(k) == Collective::all_gather;
            const DType dtype = values ? shape.model.dtype : shape.grad_dtype;
            psis += m.counts[k].sent / psi * double(dtype_bytes(shape.grad_dtype)) /
                    double(dtype_bytes(dtype)) / double(m.steps);
        }
        same = on_all_ranks(ranks, same);
        ok = ok && same;
        const auto bytes_of = [&](Memory category) {
            return format_bytes(double(held[int(category)]));
        };
        print(fmt::format("  {:<6} {:>10} {:>10} {:>10} {:>10} {:>10}   {:>10} {:>5.2f}   {}", name,
                          bytes_of(Memory::parameter), bytes_of(Memory::gradient),
                          bytes_of(Memory::optimizer), bytes_of(Memory::host),
                          format_bytes(double(gathered)), format_bytes(m.sent_bytes), psis,
                          same ? "as predicted" : "NOT as predicted"));
        times.push_back(fmt::format("  {:<6} {:>10.2f} {:>10.2f} {:>10.2f}", name,
                                    m.step_seconds * 1e3, m.communication_seconds * 1e3,
                                    m.exposed_seconds * 1e3));
        const double across = bytes_across(m.counts, int(N), zero_options, nodes) / double(m.steps);
        if (nodes.ranks > 0) times.back() += fmt::format(" {:>13}", format_bytes(across));
        report.row({{"stage", zero_options.stage},
                    {"plain", zero_options.plain},
                    {"muon", zero_options.muon},
                    {"offload", zero_options.offload},
                    {"keep_gathered", zero_options.keep_gathered},
                    {"shard_size", zero_options.shard_size},
                    {"secondary_shard", zero_options.secondary_shard},
                    {"cut", zero_options.cut == Cut::model ? "model" : "unit"},
                    {"parameter_bytes", held[int(Memory::parameter)]},
                    {"gradient_bytes", held[int(Memory::gradient)]},
                    {"optimizer_bytes", held[int(Memory::optimizer)]},
                    {"host_bytes", held[int(Memory::host)]},
                    {"gathered_bytes", gathered},
                    {"sent_bytes", m.sent_bytes},
                    {"sent_psi", psis},
                    {"across_bytes", across},
                    {"step_ms", m.step_seconds * 1e3},
                    {"communication_ms", m.communication_seconds * 1e3},
                    {"exposed_ms", m.exposed_seconds * 1e3},
                    {"as_predicted", same}});
        if (!zero_options.plain)  // it holds and sends what stage 1 does
            picture.add("stage " + name, held, gathered, m.sent_bytes, want);
    }
    print(fmt::format(
        "  x Psi: elements sent per parameter. Playbook, one micro-batch: 2, 2, 2, 3 times "
        "(n-1)/n = {:.3g}",
        double(N - 1) / double(N)));
    print("");
    for (const std::string& line : times) print(line);
    picture.draw(options.svg, N);
    report.text("compare", "result", ok ? "as predicted" : "not as predicted");
    report.finish();
    return ok;
}

}  // namespace ultrascale::zero
