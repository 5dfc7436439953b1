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
        int64_t calls = 0, bytes = 0;
    };
    std::array<Kind, collective_kinds> kinds{};
    void add(Collective kind, int64_t calls, int64_t bytes) {
        kinds[size_t(kind)].calls += calls;
        kinds[size_t(kind)].bytes += bytes;
    }
};

// Whether this rank made the calls and sent the bytes since communication_reset_counts() that `steps` steps should.
bool counted_as_predicted(const PredictedCommunication& of_step, int64_t steps);

// Whether it is so on all ranks. Rank 0 prints what it finds itself; this names the others where it is not so.
bool as_predicted_everywhere(bool here);

class Report {
public:
    Report(std::string chapter, const Options& options, const StepShape& shape, int64_t total_steps);
    ~Report();

    // The first lines: model, batch, data, device. `global_batch` in sequences, shared out over `replicas` of the model (0: each rank
    // has one).
    void configuration(int64_t global_batch, const std::string& data_description, int64_t replicas = 0);
    // Progress: a line that is rewritten on a terminal, a plain line a step elsewhere; and a line of JSON.
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

    void finish();  // writes --json and --trace, prints --profile

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// printf for rank 0.
void print(const std::string& line);

}  // namespace ultrascale
