// The output of every chapter: progress while it runs, a report at the end, and both as JSON lines
// (--json). All ranks call every function; rank 0 prints and writes.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "core/device.h"
#include "json_lines.h"
#include "lab/options/cli.h"
#include "lab/predict/estimate.h"
#include "lab/predict/prediction.h"

namespace ultrascale {

struct MemorySettings;  // lab/predict/memory_formulas.h

struct StepRecord {
    int64_t step;  // 1, 2, ...
    double loss, grad_norm, lr, seconds;
    int64_t tokens;                       // of the whole step, over all ranks
    std::optional<double> val_loss = {};  // if a validation followed the step
    std::string note = {};                // at the end of the printed line: "skipped"
};

// Whether `here` is true on all ranks. Prints the numbers of the other ranks for which it is not;
// rank 0's own result is in its tables.
bool as_predicted_everywhere(bool here);

class Report {
public:
    Report(std::string chapter, const Options& options, const StepShape& shape,
           int64_t total_steps);
    ~Report();
    bool full() const;  // --report full: chapters also print explanations of the figures

    // Prints the first lines: model, batch, data, device. `global_batch` is in sequences, divided
    // among `replicas` of the model (0: each rank has one). data_description is empty if no data is
    // read.
    void configuration(int64_t global_batch, const std::string& data_description,
                       int64_t replicas = 0);
    // Prints the chapter's own line ("  sync    bucket: ..."). `layout`: the layout of the ranks
    // ({"dp", 4}).
    void technique(const std::string& label, const std::string& words, const JsonFields& layout);
    // The page of --html gets a section with a Llama's formulas of memory, beginning with these
    // settings (configuration() and technique() call it for the run's own, if it is of a Llama).
    void formulas(const MemorySettings& settings);
    // Progress: a printed line every --log-every steps, and a line of JSON for each step.
    void step(const StepRecord& record);
    // Prints the loss on --val-data after `step`; step() calls it if the record has one.
    void validation(int64_t step, double loss);

    // The report's sections compare each rank's own prediction with what it measured; the result is
    // the same on all ranks. memory() measures the memory held now (the end of a step) and the
    // peaks since memory_reset_peak(), and returns whether the persistent categories are equal and
    // the peaks within peak_tolerance. With --report full it prints a row per rank if ranks hold
    // different amounts.
    bool memory(const Prediction& predicted);
    // Adds to that prediction the copies from which this rank's checkpoints are written.
    void checkpoint_copies(int64_t bytes);
    // Covers everything since communication_reset_counts() except `not_of_steps` (a validation's
    // communication); times are those of the steps after warm-up. Returns whether calls and bytes
    // are equal in each group of ranks and for each kind.
    bool communication(const Prediction& step_prediction, int64_t steps,
                       const CommunicationCounts& not_of_steps = {});
    // For steps that differ: the prediction is for all `steps` of the run together.
    bool communication_of_run(const Prediction& run_prediction, int64_t steps,
                              const CommunicationCounts& not_of_steps = {});
    // Medians over the steps after warm-up: tokens/s, TFLOP/s, MFU and HFU per device. Past 8,192
    // tokens, or with a window, also those that count only keys that a token sees
    // (predicted.seen).
    void throughput(const Prediction& predicted);
    // --estimate prints this instead of these sections: the prediction for `steps` steps together,
    // for the rank that has the least memory left, and whether it fits; if not, `advice`.
    void estimate(const Prediction& run_prediction, int64_t steps, const Advice& advice);
    // Ranks that give the same number do the same, so that their times can be compared (--profile,
    // --trace); by default all do.
    void group_of_times(int64_t group);
    // Writes a line of --json that is not on the page; adds a JSON object to the summary.
    void line(const std::string& object);
    void section(const std::string& name, const std::string& object);
    // Adds a chapter's own value to the JSON summary: {"summary": {section: {key: value}}}.
    void value(const std::string& section, const std::string& key, double number);
    void text(const std::string& section, const std::string& key, const std::string& words);
    // Writes a row of a table that the chapter prints (--compare, --demo, --estimate): {"row":
    // {...}}.
    void row(const JsonFields& fields);

    void finish();  // writes --json's summary and --trace, prints --profile

private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Prints a line on rank 0.
void print(const std::string& line);

}  // namespace ultrascale
