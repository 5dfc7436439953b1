// What every chapter prints: progress while it runs, one report at the end, and both as JSON lines (--json).
// All ranks call everything; rank 0 prints and writes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli.h"
#include "comm.h"
#include "device.h"
#include "estimate.h"
#include "json_lines.h"

namespace ultrascale {

struct StepRecord {
    int64_t step;  // 1, 2, ...
    double loss, grad_norm, lr, seconds;
    int64_t tokens;                       // of the whole step, over all ranks
    std::optional<double> val_loss = {};  // where the step was followed by a validation
};

// Communication of one step by formula: calls and bytes of each kind, for the rank that prints.
struct PredictedCommunication {
    struct Kind {
        int64_t calls = 0, bytes = 0;  // bytes: the tensors'
        double sent = 0;               // by this rank, by comm.h's formula
    };
    std::array<Kind, collective_kinds> kinds{};
    // `calls` calls in a group of `ranks`, on tensors of `bytes` in all.
    void add(Collective kind, int64_t calls, int64_t bytes, int ranks) {
        add(kind, {calls, bytes, bytes_sent(kind, double(bytes), ranks)});
    }
    void add(Collective kind, const Kind& more) {
        Kind& sum = kinds[size_t(kind)];
        sum.calls += more.calls, sum.bytes += more.bytes, sum.sent += more.sent;
    }
    PredictedCommunication times(int64_t n) const {
        PredictedCommunication all = *this;
        for (Kind& kind : all.kinds) kind.calls *= n, kind.bytes *= n, kind.sent *= double(n);
        return all;
    }
};

// Whether this rank made the calls and sent the bytes since communication_reset_counts() that `steps` steps should.
bool counted_as_predicted(const PredictedCommunication& of_step, int64_t steps);
// What it sent since then, in all kinds of calls together.
double bytes_sent_in_all(const CommunicationCounts& counts);

// Whether it is so on all ranks. Rank 0 prints what it finds itself; this names the others where it is not so.
bool as_predicted_everywhere(bool here);

class Report {
public:
    Report(std::string chapter, const Options& options, const StepShape& shape, int64_t total_steps);
    ~Report();
    bool full() const;  // --report full: chapters print what explains the figures, too

    // The first lines: model, batch, data, device. `global_batch` in sequences, shared out over `replicas` of the model (0: each rank
    // has one).
    void configuration(int64_t global_batch, const std::string& data_description, int64_t replicas = 0);
    // Another of them: what the chapter does ("  sync    bucket: ..."), and how the ranks are laid out ({"dp", 4}).
    void technique(const std::string& label, const std::string& words, const JsonFields& layout);
    // Progress: a line every --log-every steps, and a line of JSON for each step.
    void step(const StepRecord& record);
    // The loss on --val-data after `step`; step() calls it where the record has one.
    void validation(int64_t step, double loss);

    // The report's sections; what they return is the same on all ranks. Measured: what is held now (the end of a step), and the peak of
    // activations since memory_reset_peak(). Returns whether the persistent categories are equal and activations are within 1 %.
    bool memory(const MemoryEstimate& predicted);
    // Since communication_reset_counts(), less what belonged to no step (a validation's); times are of the steps after warm-up. Returns
    // whether calls and bytes are equal.
    bool communication(const PredictedCommunication& predicted, int64_t steps, const CommunicationCounts& not_of_steps = {});
    // Where steps differ: predicted for the `steps` of the run together.
    bool communication_of_run(const PredictedCommunication& predicted, int64_t steps, const CommunicationCounts& not_of_steps = {});
    // Medians of the steps after warm-up: tokens/s, TFLOP/s, MFU and HFU per device.
    void throughput();
    // A chapter's own figure for the JSON summary: {"summary": {section: {key: value}}}.
    void value(const std::string& section, const std::string& key, double number);
    void text(const std::string& section, const std::string& key, const std::string& words);
    // A row of a table that the chapter prints (--compare, --demo, --estimate): {"row": {...}}.
    void row(const JsonFields& fields);

    void finish();  // writes --json's summary and --trace, prints --profile

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// printf for rank 0.
void print(const std::string& line);

}  // namespace ultrascale
