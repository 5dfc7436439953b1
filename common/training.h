// What every chapter's main.cpp has around its step loop (the loop itself is written out in each).
#pragma once

#include <algorithm>

#include "cli.h"
#include "comm.h"
#include "data.h"
#include "error.h"
#include "estimate.h"
#include "trace.h"

namespace ultrascale {

inline double scalar(const Tensor& t) { return t.to_host<double>()[0]; }  // of a (1) fp64 tensor; the host waits for it

// The largest value that any rank has, and whether something holds on all of them. All ranks call them.
inline double largest_of_ranks(const Communicator& ranks, double value) {
    const Tensor x = Tensor::from_host<double>(std::vector<double>{value}, {1}, Memory::workspace);
    ranks.all_reduce(x, Reduce::max);
    return scalar(x);
}
inline bool on_all_ranks(const Communicator& ranks, bool ok) { return largest_of_ranks(ranks, !ok) == 0; }

inline double median(std::vector<double> values) {  // of several; of an even number the higher of the two in the middle
    const auto middle = values.begin() + std::ptrdiff_t(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

// Runs the training after its estimate was found to fit. What may still not fit is workspace, or the verifying run beside it.
template <class F>
bool train_within_memory(const Options& options, F train) {
    try {
        return train();
    } catch (const OutOfMemory& error) {
        const bool verifies = options.verify.value_or(true), smaller = options.micro_batch > 1;
        user_error("{}; {}", error.what(),
                   verifies && smaller ? "--no-verify or a smaller --micro-batch may fit"
                   : verifies          ? "--no-verify may fit"
                   : smaller           ? "a smaller --micro-batch may fit"
                                       : "a smaller --seq or --model may fit");
    }
}

// A span in the trace's lane "phase"; what belongs to no unit of the model carries its name.
template <class F>
auto phase(const char* name, F work) {
    OpSpan span(name, 0, 0, "phase");
    const TraceName what(TraceName::pass, name);
    return work();
}

// One rank's share of a step as the shared options ask for it.
inline StepShape step_shape(const Options& options, const LlamaConfig& config, AttentionKind attention = AttentionKind::flash,
                            int64_t loss_chunk = 0) {
    return {.config = config,
            .model = {options.dtype, options.recompute, attention, loss_chunk},
            .grad_dtype = options.grad_dtype(),
            .micro_batch = options.micro_batch,
            .seq = options.seq > 0 ? options.seq : config.default_seq};
}

// Sequences of a step. UserError: more than 10^7. Of sequences_of_step(), each of `replicas` models has a part.
inline int64_t checked_sequences(double sequences) {
    if (sequences > 1e7) user_error("a step of {:.0f} sequences: at most 10^7, see --grad-accum", sequences);
    return int64_t(sequences);
}
inline int64_t sequences_of_step(const Options& options, int64_t replicas) {
    return checked_sequences(double(options.micro_batch) * double(options.grad_accum) * double(replicas));
}

// Which samples the shared options ask for.
inline DataOptions data_options(const Options& options, int64_t seq) {
    DataOptions data{.seq = seq};
    if (options.shuffle) data.shuffle_seed = options.seed;
    if (options.document_token >= 0) data.document_token = options.document_token;
    if (options.ignore_token >= 0) data.ignore_token = options.ignore_token;
    return data;
}
// Over how many targets the mean of a step's loss goes that takes `count` samples from `first_sample` on. UserError: over none.
inline int64_t counted_targets(const DataLoader& loader, int64_t first_sample, int64_t count) {
    const int64_t counted = loader.counted_targets(first_sample, count);
    if (counted == 0) user_error("samples {} to {}: every target is ignored, so there is no loss", first_sample, first_sample + count - 1);
    return counted;
}

// Whether to compare the first steps with one plain device: --verify, or by default for small models.
inline bool wants_verification(const Options& options, const LlamaConfig& config) {
    return options.steps > 0 && options.verify.value_or(parameter_count(config) < 5'000'000);
}

}  // namespace ultrascale
