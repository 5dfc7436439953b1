// What every chapter prints: progress while it runs, one report at the end, and both as JSON lines
// (--json). All ranks call everything; rank 0 prints and writes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli.h"
#include "comm/comm.h"
#include "core/device.h"
#include "estimate.h"
#include "json_lines.h"
#include "prediction.h"

namespace ultrascale {

struct StepRecord {
    int64_t step;  // 1, 2, ...
    double loss, grad_norm, lr, seconds;
    int64_t tokens;                       // of the whole step, over all ranks
    std::optional<double> val_loss = {};  // where the step was followed by a validation
};

// Whether it is so on all ranks. Rank 0 prints what it finds itself; this names the others where it
// is not so.
bool as_predicted_everywhere(bool here);

class Report {
public:
    Report(std::string chapter, const Options& options, const StepShape& shape,
           int64_t total_steps);
    ~Report();
    bool full() const;  // --report full: chapters print what explains the figures, too

    // The first lines: model, batch, data, device. `global_batch` in sequences, shared out over
    // `replicas` of the model (0: each rank has one). No data: nothing is read.
    void configuration(int64_t global_batch, const std::string& data_description,
                       int64_t replicas = 0);
    // Another of them: what the chapter does ("  sync    bucket: ..."), and how the ranks are laid
    // out ({"dp", 4}).
    void technique(const std::string& label, const std::string& words, const JsonFields& layout);
    // Progress: a line every --log-every steps, and a line of JSON for each step.
    void step(const StepRecord& record);
    // The loss on --val-data after `step`; step() calls it where the record has one.
    void validation(int64_t step, double loss);

    // The report's sections, each rank's own prediction beside what it measured; what they return
    // is the same on all ranks. Measured: what is held now (the end of a step), and the peaks since
    // memory_reset_peak(). Returns whether the persistent categories are equal and the peaks within
    // peak_tolerance. With --report full a row a rank, where ranks hold different amounts.
    bool memory(const Prediction& predicted);
    // Since communication_reset_counts(), less what belonged to no step (a validation's); times are
    // of the steps after warm-up. Returns whether calls and bytes are equal, in each group of ranks
    // and of each kind.
    bool communication(const Prediction& of_step, int64_t steps,
                       const CommunicationCounts& not_of_steps = {});
    // Where steps differ: predicted for the `steps` of the run together.
    bool communication_of_run(const Prediction& of_run, int64_t steps,
                              const CommunicationCounts& not_of_steps = {});
    // Medians of the steps after warm-up: tokens/s, TFLOP/s, MFU and HFU per device.
    void throughput(const Prediction& predicted);
    // --estimate, in the place of these sections: each rank's own prediction alone, for `steps`
    // steps together. Shown is that of the rank which has the least memory left, and whether it
    // fits; `advice`: what would need less.
    void estimate(const Prediction& of_run, int64_t steps, const std::string& advice);
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
