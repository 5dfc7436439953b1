// What a rank will hold and send in a step, by formula: a sum of parts. A chapter begins with what
// the model and its activations need, and every technique adds its own (add_to(Prediction&)):
//
//     Prediction p;
//     add_parameters(p, parameters.local_numel(), shape);    estimate.h: with gradients, optimizer
//     add_activations(p, local_sizes(shape));                activations.h
//     add_flops(p, shape, parameter_count(shape.config));
//     sync.add_to(p);                                        01: its all-reduces and its buffers
//     report.memory(p), report.communication(p, steps), report.throughput(p)
//
// The report prints it beside what was measured and counted.
#pragma once

#include <array>
#include <map>
#include <string>

#include "comm/comm.h"

namespace ultrascale {

// What persists is predicted to the byte. Peaks may be off by so much of the predicted.
inline constexpr double peak_tolerance = 0.01;
inline bool peak_as_predicted(int64_t predicted, int64_t measured) {
    const double off = double(measured) - double(predicted);
    return (off < 0 ? -off : off) <= peak_tolerance * double(predicted);
}

// Memory in bytes, by category.
struct MemoryEstimate {
    int64_t parameters = 0, gradients = 0, optimizer = 0;  // they stay
    int64_t peak_activations = 0;    // the most that forward and backward hold at once
    int64_t peak_communication = 0;  // buffers of a technique that gathers what it does not keep
    int64_t host = 0;                // on the host, beside them
    // The buffers exist only where no activations do: their peaks do not add up.
    bool one_after_the_other = false;
    // On the device; saturating, as each part is. At most: the peaks may not meet.
    int64_t total() const;
    MemoryEstimate& operator+=(const MemoryEstimate& more);
};

// A group of ranks as a prediction names it: by the Communicator's name, under which its calls are
// counted, or where there is no Communicator.
struct Group {
    std::string name;
    int ranks;
    Group(const Communicator& group) : name(group.name()), ranks(group.size()) {}
    Group(std::string name, int64_t ranks) : name(std::move(name)), ranks(int(ranks)) {}
};

// Calls and bytes, by group and kind, of the rank that predicts.
struct PredictedCommunication {
    struct Kind {
        int64_t calls = 0, bytes = 0;  // bytes: the tensors'
        double sent = 0;               // by this rank, by comm.h's formula
        Kind& operator+=(const Kind& more);
        Kind times(int64_t n) const { return {calls * n, bytes * n, sent * double(n)}; }
    };
    using Kinds = std::array<Kind, collective_kinds>;
    std::map<std::string, Kinds> groups;

    // `calls` calls on tensors of `bytes` in all, none of them with a root.
    void add(const Group& group, Collective kind, int64_t calls, int64_t bytes);
    void add(const Group& group, Collective kind, const Kind& more);
    Kind of(Collective kind) const;  // of all groups together
    PredictedCommunication times(int64_t n) const;
    PredictedCommunication& operator+=(const PredictedCommunication& more);
};

struct Prediction {
    MemoryEstimate memory;
    PredictedCommunication communication;
    // Of the whole model, for each token of the batch: what a token needs (the same for every
    // technique), and what is computed a second time.
    double flops_per_token = 0, recomputed_flops_per_token = 0;

    Prediction& operator+=(const Prediction& more);
    // Of so many steps (or synchronisations): memory is what one of them holds, and FLOPs are a
    // token's.
    Prediction times(int64_t n) const;
};

// Whether `counts` are what `steps` steps should send from this rank: in every group by every kind
// of call.
bool counted_as_predicted(const PredictedCommunication& of_step, int64_t steps,
                          CommunicationCounts counts);
// The formula's bytes are no whole numbers where n does not divide a tensor's.
bool is_as_predicted(const PredictedCommunication::Kind& predicted, const CommunicationCount& got);

}  // namespace ultrascale
