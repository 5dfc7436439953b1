// --compare: runs a few steps with each variant and layout, on the same data, and prints one table:
// the most that a rank holds, what it sends inside attention, the step's time and the loss.
#pragma once

#include "document_counts.h"
#include "lab/measure/measure.h"
#include "longest.h"
#include "sections.h"

namespace ultrascale::context_parallel {

// The variants that `cp` ranks can run, with their names in the table. With documents or a window a
// ring's backward can only be restarted.
inline std::vector<std::pair<std::string, ContextOptions>> variants_of(int cp,
                                                                       const Options& options) {
    const bool documents = leaves_keys_out(options), prefix = options.prefix > 0;
    const auto ring = [&](Layout layout, RingBackward backward, bool bidirectional) {
        return ContextOptions{
            .cp = cp, .layout = layout, .bidirectional = bidirectional, .backward = backward};
    };
    using enum RingBackward;
    const RingBackward usual = documents ? restarted : reversed;
    std::vector<std::pair<std::string, ContextOptions>> variants;
    if (!documents && !prefix)
        variants.push_back({"plain ring, contiguous",
                            {.cp = cp,
                             .variant = Variant::plain,
                             .layout = Layout::contiguous,
                             .backward = restarted}});
    variants.insert(variants.end(), {{"ring, contiguous", ring(Layout::contiguous, usual, false)},
                                     {"ring, striped", ring(Layout::striped, usual, false)},
                                     {"ring, zigzag", ring(Layout::zigzag, usual, false)}});
    if (!documents) {
        variants.push_back({"ring, zigzag, own keys kept", ring(Layout::zigzag, kept, false)});
        variants.push_back(
            {"ring, zigzag, backward restarted", ring(Layout::zigzag, restarted, false)});
    }
    if (!prefix)
        variants.push_back({"ring, zigzag, bidirectional", ring(Layout::zigzag, restarted, true)});
    variants.push_back({"all-gather, zigzag", {.cp = cp, .variant = Variant::all_gather}});
    variants.push_back(
        {"ulysses", {.cp = cp, .variant = Variant::ulysses, .layout = Layout::contiguous}});
    for (int u = 2; u < cp; ++u)
        if (cp % u == 0)
            variants.push_back(
                {fmt::format("usp, {} x {}, zigzag", u, cp / u),
                 {.cp = cp, .variant = Variant::usp, .ulysses = u, .backward = usual}});
    return variants;
}

// The bytes that this rank sent inside attention in a step: all but sums of gradients and losses.
inline double sent_in_attention(const Measured& m) {
    return (bytes_sent_in_all(m.counts) - m.counts[size_t(Collective::all_reduce)].sent) /
           double(m.steps);
}

inline double mean_of_ranks(const Communicator& ranks, double value) {
    const Tensor sum = Tensor::from_host<double>(std::vector{value}, {1}, Memory::workspace);
    ranks.all_reduce(sum);
    return scalar(sum) / ranks.size();
}

// All ranks call it; rank 0 prints. Returns false if, on any rank, a variant's memory or
// communication differs from its prediction, or its loss from that of the first variant.
inline bool compare_variants(
    const Options& options, int cp_size, const StepShape& shape,
    const std::function<void(Step&, Llama&, Updater&, const Mesh&)>& train_step) {
    const Communicator& world = Communicator::world();
    const Mesh mesh(world, {{"dp", world.size() / cp_size}, {"cp", cp_size}});
    const Communicator &dp = mesh.group("dp"), &cp = mesh.group("cp");
    const Communicator& all = mesh.group({"dp", "cp"});
    const int64_t A = options.grad_accum, sequences = sequences_of_step(options, dp.size());
    const TokenFile file(options.data_path(), shape.config.vocab);
    const DataLoader loader(file, data_options(options, shape));
    print(
        fmt::format("cp {} x dp {}; {:.3f} M parameters in {}; {} x {} tokens a micro-batch, {} "
                    "a step",
                    cp_size, dp.size(), double(parameter_count(shape.config)) / 1e6,
                    dtype_name(shape.model.dtype), options.micro_batch, shape.seq, A));
    print(fmt::format("  {:<33} {:>11} {:>9} {:>20}", "", "at the peak", "", "sent by attention"));
    print(fmt::format("  {:<33} {:>11} {:>9} {:>10} {:>9} {:>7} {:>8}", "", "activations",
                      "buffers", "mean", "most", "exposed", "step ms"));
    Report report("04_context_parallel", options, shape, 0);
    bool ok = true;
    double first_loss = 0, apart = 0;
    std::vector<std::string> left_out;
    for (const auto& [name, context] : variants_of(cp_size, options)) {
        try {
            check_shares(shape.config, context, shape.seq);
            if (options.dropout > 0 && context.layout == Layout::striped)
                user_error("each token would need a dropout mask of its own");
            if (!on_all_ranks(world, fits(shape, context, memory_limit())))
                user_error("it does not fit in {}", format_bytes(double(memory_limit())));
        } catch (const UserError& reason) {
            left_out.push_back(fmt::format("  without {}:\n    {}", name, reason.what()));
            continue;
        }
        ContextParallel parallel(shape.config, context, shape.seq, cp);
        Llama model(shape.config, shape.model, parallel.factories(shape.model),
                    Stage::whole(shape.config));
        ParameterList& parameters = model.parameters();
        parameters.allocate_values(options.dtype);
        parameters.allocate_grads(options.grad_dtype(), all.symmetric_memory());
        PlainUpdater optimizer(parameters, options, &mesh);
        optimizer.start();
        const DataSlice slice{.micro_batch = options.micro_batch,
                              .count = dp.size(),
                              .replica = dp.rank(),
                              .part = [&](const HostBatch& whole) { return parallel.part(whole); }};
        DocumentCounts documents(shape, context, parallel);
        double loss = 0;
        const Measured m = measure(loader, slice, sequences, options.steps, [&](Step& step) {
            step.on_finish = [&](double step_loss, double) { loss = step_loss; };
            if (step.first) step.watch = {&documents};
            train_step(step, model, optimizer, mesh);
        });

        Prediction predicted = predict(shape, context, parameters, A, all, parallel.ring_rank());
        documents.correct(predicted);
        const MemoryByCategory peak = memory_peak_by_category();
        const int64_t activations = peak[int(Memory::activation)],
                      buffers = peak[int(Memory::communication)];
        if (first_loss == 0) first_loss = loss;
        apart = std::max(apart, std::abs(loss - first_loss));
        const bool same = on_all_ranks(
            world, counted_as_predicted(predicted.communication, m.steps, m.counts) &&
                       peak_as_predicted(predicted.memory.peak_activations, activations) &&
                       peak_as_predicted(predicted.memory.peak_communication, buffers));
        ok = ok && same;
        const double sent = sent_in_attention(m), most = largest_of_ranks(world, sent),
                     mean = mean_of_ranks(world, sent),
                     most_activations = largest_of_ranks(world, double(activations)),
                     most_buffers = largest_of_ranks(world, double(buffers));
        print(fmt::format("  {:<33} {:>11} {:>9} {:>10} {:>9} {:>7.2f} {:>8.2f}{}", name,
                          format_bytes(most_activations), format_bytes(most_buffers),
                          format_bytes(mean), format_bytes(most), m.exposed_seconds * 1e3,
                          m.step_seconds * 1e3, same ? "" : "   NOT as predicted"));
        report.row({{"variant", name},
                    {"peak_activation_bytes", int64_t(most_activations)},
                    {"peak_communication_bytes", int64_t(most_buffers)},
                    {"sent_in_attention_mean", mean},
                    {"sent_in_attention_most", most},
                    {"exposed_ms", m.exposed_seconds * 1e3},
                    {"step_ms", m.step_seconds * 1e3},
                    {"loss", loss},
                    {"as_predicted", same}});
    }
    for (const std::string& line : left_out) print(line);
    const double limit = options.dtype == DType::fp32 ? 1e-5 : 1e-2;
    const bool equal = apart <= limit * std::abs(first_loss);
    print(
        fmt::format("memory and communication of each variant: {}; losses: at most {:.2g} apart{}",
                    ok ? "as predicted" : "NOT as predicted", apart, equal ? "" : "   MISMATCH"));
    report.text("compare", "result", ok && equal ? "as predicted" : "not as predicted");
    report.finish();
    return ok && equal;
}

}  // namespace ultrascale::context_parallel
