// The report's sections: memory, communication and speed, predicted and measured.
#include "comm/nodes.h"
#include "core/device.h"
#include "lab/options/option_list.h"
#include "report_impl.h"

namespace ultrascale {

namespace {
// For a check in which each rank describes what is wrong, or passes an empty text.
bool as_predicted_everywhere(const std::string& wrong_here) {
    const std::vector<std::string> wrong = Communicator::world().gather_strings(wrong_here);
    for (size_t rank = 1; rank < wrong.size(); ++rank)
        if (!wrong[rank].empty())
            print(fmt::format("  on {}: not as predicted{}   MISMATCH", rank_name(int(rank)),
                              wrong[rank]));
    return std::ranges::all_of(wrong, &std::string::empty);
}
}  // namespace

bool as_predicted_everywhere(bool here) {
    return as_predicted_everywhere(std::string(here ? "" : "."));
}

void Report::checkpoint_copies(int64_t bytes) { impl_->checkpoint_copies = bytes; }

bool Report::memory(const Prediction& predicted) {
    MemoryEstimate memory = predicted.memory;
    memory.checkpoint += impl_->checkpoint_copies;
    const MemoryTable table = print_memory(memory, full());
    impl_->summary["memory"] = table.by_category;
    impl_->summary["memory_by_rank"] = table.by_rank;
    return as_predicted_everywhere(table.wrong);
}

bool Report::communication(const Prediction& step_prediction, int64_t steps,
                           const CommunicationCounts& not_of_steps) {
    return communication_of_run(step_prediction.times(steps), steps, not_of_steps);
}

// Prints which of the groups that have communicated have ranks on several nodes, and returns their
// names.
static std::string print_groups_across_nodes(const Options& options, const Json& by_group) {
    const Nodes nodes = options.inter_gbps > 0 ? Nodes{.ranks = options.node_size} : machines();
    std::string across, inside;
    for (const auto& [name, kinds] : by_group.items()) {
        std::string& words = spans_nodes(name, nodes) ? across : inside;
        words += (words.empty() ? "" : ", ") + name;
    }
    const auto or_none = [](const std::string& words) { return words.empty() ? "none" : words; };
    print(wrapped(fmt::format("  groups across nodes: {}; inside one: {}", or_none(across),
                              or_none(inside))));
    return across;
}

bool Report::communication_of_run(const Prediction& run_prediction, int64_t steps,
                                  const CommunicationCounts& not_of_steps) {
    const CommunicationTable table = print_communication(
        run_prediction.communication, difference(communication_counts(), not_of_steps),
        impl_->in_warmup, steps, steps - impl_->timed_from, full());
    impl_->summary["communication"] = table.by_kind;
    impl_->summary["communication_by_group"] = table.by_group;
    if (impl_->options.node_size > 0)
        impl_->summary["groups_across_nodes"] =
            print_groups_across_nodes(impl_->options, table.by_group);
    return as_predicted_everywhere(table.as_predicted);
}

void Report::throughput(const Prediction& predicted) {
    const Impl& self = *impl_;
    if (self.records.empty()) return;
    memory_timeline_record(false);
    const double devices = double(Communicator::world().size());
    const double rate =
        self.median([](const StepRecord& r) { return double(r.tokens) / r.seconds; }) / devices;
    const double seconds = self.median([](const StepRecord& r) { return r.seconds; });
    const double flops = predicted.flops_per_token * rate;
    const double with_recomputation = flops + predicted.recomputed_flops_per_token * rate;
    const DevicePeak peak = self.options.peak_tflops > 0
                                ? DevicePeak{self.options.peak_tflops * 1e12, "given"}
                                : device_peak(self.options.dtype);
    print(fmt::format("\nspeed per device (median step {:.1f} ms)", seconds * 1e3));
    print(fmt::format("  {:.0f} tokens/s   {:.4g} TFLOP/s   MFU {:.1f} %   HFU {:.1f} %", rate,
                      flops / 1e12, 100 * flops / peak.flops,
                      100 * with_recomputation / peak.flops));
    // The usual count includes the keys that a causal mask or a window hides; the difference
    // matters if attention is most of the work.
    const double hidden = (1 - predicted.seen) * rate,
                 seen = flops - hidden * predicted.attention_flops_per_token,
                 seen_with_recomputation =
                     with_recomputation - hidden * (predicted.attention_flops_per_token +
                                                    predicted.recomputed_attention_flops_per_token);
    if (self.shape.seq > 8192 || predicted.seen < 0.5)
        print(fmt::format(
            "  counting only keys that a token sees: {:.4g} TFLOP/s   MFU {:.1f} %   "
            "HFU {:.1f} %",
            seen / 1e12, 100 * seen / peak.flops, 100 * seen_with_recomputation / peak.flops));
    print(fmt::format("  of {:.4g} TFLOP/s ({})", peak.flops / 1e12, peak.source));
    impl_->summary["speed"] = {{"tokens_per_second", rate * devices},
                               {"tokens_per_second_per_device", rate},
                               {"step_ms", seconds * 1e3},
                               {"tflops", flops / 1e12},
                               {"mfu", flops / peak.flops},
                               {"hfu", with_recomputation / peak.flops},
                               {"mfu_seen_keys", seen / peak.flops},
                               {"hfu_seen_keys", seen_with_recomputation / peak.flops},
                               {"peak_tflops", peak.flops / 1e12}};
}

void Report::estimate(const Prediction& run_prediction, int64_t steps, const Advice& advice) {
    impl_->summary.update(print_estimate(run_prediction, steps, advice));
}

}  // namespace ultrascale
