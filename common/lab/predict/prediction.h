// Predicts by formula what a rank holds and sends in a step. A chapter begins with what the model
// and its activations need, and every technique adds its own part (add_to(Prediction&)):
//
//     Prediction p;
//     add_parameters(p, parameters.local_numel(), shape);    estimate.h: with gradients, optimizer
//     add_activations(p, local_sizes(shape));                activations.h
//     add_flops(p, shape, parameter_count(shape.config));
//     sync.add_to(p);                                        01: its all-reduces and its buffers
//     report.memory(p), report.communication(p, steps), report.throughput(p)
//
// The report prints it next to the measured and counted numbers.
#pragma once

#include <array>
#include <map>
#include <string>

#include "comm/comm.h"
#include "core/memory.h"

namespace ultrascale {

// Persistent memory is predicted to the byte. Peaks may differ by this fraction of the prediction.
inline constexpr double peak_tolerance = 0.01;
inline bool peak_as_predicted(int64_t predicted, int64_t measured) {
    const double off = double(measured) - double(predicted);
    return (off < 0 ? -off : off) <= peak_tolerance * double(predicted);
}

struct MemoryEstimate {
    int64_t parameters = 0, gradients = 0, optimizer = 0;  // persistent
    int64_t peak_activations = 0;    // the most held at once in forward and backward
    int64_t gradients_at_peak = 0;   // what gradients that come and go add to the peak
    int64_t peak_communication = 0;  // buffers for what a technique gathers but does not keep
    int64_t host = 0;                // on the host
    int64_t checkpoint = 0;          // there, too: the copies that a save beside the steps reads
    // The buffers exist only while no activations do, so their peaks do not add up.
    bool one_after_the_other = false;
    // The total on the device, saturating like its parts. An upper bound, as the peaks may not
    // coincide.
    int64_t total() const;
    MemoryEstimate& operator+=(const MemoryEstimate& more);
};

// Whether what persists is held as predicted, to the byte.
inline bool held_as_predicted(const MemoryEstimate& predicted, const MemoryByCategory& held) {
    return held[size_t(Memory::parameter)] == predicted.parameters &&
           held[size_t(Memory::gradient)] == predicted.gradients &&
           held[size_t(Memory::optimizer)] == predicted.optimizer;
}

// A group of ranks in a prediction: its name, under which the Communicator's calls are counted, and
// its size. It does not need a Communicator.
struct Group {
    std::string name;
    int ranks;
    Group(const Communicator& group) : name(group.name()), ranks(group.size()) {}
    Group(std::string name, int64_t ranks) : name(std::move(name)), ranks(int(ranks)) {}
};

// This rank's calls and bytes, by group and kind.
struct PredictedCommunication {
    // Sizes that no machine has end at the largest int64_t, and do not overflow.
    struct Kind {
        int64_t calls = 0, bytes = 0;  // bytes: the tensors' size
        double sent = 0;               // by this rank, by comm.h's formula
        Kind& operator+=(const Kind& more);
        Kind times(int64_t n) const;
    };
    using Kinds = std::array<Kind, collective_kinds>;
    std::map<std::string, Kinds> groups;

    // `calls` calls on tensors of `bytes` in total, of a kind without a root.
    void add(const Group& group, Collective kind, int64_t calls, int64_t bytes);
    void add(const Group& group, Collective kind, const Kind& more);
    // The sum over the group of the loss (Step::sum_loss) or of a squared norm, and of the votes to
    // stop beside it: two fp64 numbers. A rank that is alone calls nothing.
    void add_scalar_sum(const Group& group);
    Kind of(Collective kind) const;  // of all groups together
    PredictedCommunication times(int64_t n) const;
    PredictedCommunication& operator+=(const PredictedCommunication& more);
};

struct Prediction {
    MemoryEstimate memory;
    PredictedCommunication communication;
    // The whole model's FLOPs per token of the batch: what a token needs (the same for every
    // technique), and what is computed a second time.
    double flops_per_token = 0, recomputed_flops_per_token = 0;
    // Attention's scores and weighted sums in these FLOPs, as if each token saw the whole sequence;
    // and the share of the sequence that it sees on average: half, with a causal mask, less with a
    // window, more with a prefix.
    double attention_flops_per_token = 0, recomputed_attention_flops_per_token = 0;
    double seen = 0.5;

    Prediction& operator+=(const Prediction& more);
    // The prediction for n steps (or synchronisations). Memory stays that of one step, and FLOPs
    // stay per token.
    Prediction times(int64_t n) const;
};

// Whether `counts` equal what `steps` steps should send from this rank, for every group and kind of
// call.
bool counted_as_predicted(const PredictedCommunication& per_step, int64_t steps,
                          CommunicationCounts counts);
// Compares `sent` with a tolerance: the formula gives no whole number if n does not divide a
// tensor's bytes.
bool is_as_predicted(const PredictedCommunication::Kind& predicted, const CommunicationCount& got);

}  // namespace ultrascale
