// Everything around a chapter's training step: the file and its samples, the header, where an
// earlier run is resumed, verification, validation, clocks, records, saves and the report.
//
//     Run run("02_zero", options, shape, {.micro_batch = B, .count = N, .replica = r});
//     ...                                             the model, the technique, the optimizer
//     run.load(parameters, optimizer);
//     run.start({...});
//     while (Step* step = run.next()) train_step(*step, ...);        step.h
//     return run.finish([&](Report& report) { ... });
//
// All ranks make all calls.
#pragma once

#include "model/optimizer.h"
#include "report/report.h"
#include "sampling.h"
#include "saves.h"
#include "setup.h"
#include "step.h"
#include "validation.h"
#include "verify.h"

namespace ultrascale {

// What a run trains: what this rank holds of it, and how the header describes it.
struct Trained {
    std::function<std::vector<TensorPart>()> values = {}, gradients = {};
    // What a resumed run needs besides, the model's buffers too; none: saves hold weights only.
    std::function<std::vector<TensorPart>()> optimizer_states = {};
    // Forward alone, for --val-data: adds to context.loss what this rank has of the loss.
    std::function<void(Context&)> forward = {};
    std::function<void(const Tensor& loss)> sum_loss = {};  // where that is not all of it
    NextToken next_token = {};                              // for --sample
    // The header's line on the technique ("  sync    bucket: ..."), and the ranks' layout
    // ({"dp", 4}).
    std::string label = {}, technique = {};
    JsonFields layout = {};
    std::string of_validation = {};  // ends the header's line on it
    // What the plain training that verify compares with does besides (experts), and in which
    // micro-batches: 0 is all of a step at once. Why the run is not meant to be equal to it; empty:
    // it is.
    std::function<void(Parts&)> plain_parts = {};
    int64_t plain_micro_batch = 0;
    std::string not_equal = {};
};
// A model whose parameters are in one list, and its optimizer.
Trained trained(Llama& model, AdamW& optimizer);

class Run {
public:
    // Opens the files. UserError: they cannot be read. `sequences_of`: of a step (0, 1, ...), all
    // ranks together; none: --micro-batch x --grad-accum x share.count.
    Run(std::string chapter, const Options& options, const StepShape& shape, const Share& share,
        std::function<int64_t(int64_t step)> sequences_of = {});
    const DataLoader& loader() const { return loader_; }

    // Where the training starts: weights from --seed or --load, and what the optimizer had there.
    // Or a technique that loads by itself says so.
    void load(ParameterList& parameters, AdamW& optimizer);
    void load(const TrainingState& state) { state_ = state; }
    // Prints the header and lets rank 0 train the plain way, if that is asked for. Then counts
    // begin.
    void start(Trained what);

    // Begins a step; nullptr: there is none left. The former one may still be unfinished (a
    // pipeline whose update is confirmed in the next step's warm-up), but not the one before it.
    Step* next();
    int64_t steps_done() const { return done_; }  // that have finished
    Report& report() { return *report_; }
    CommunicationCounts of_validation() const {  // belongs to no step
        return validation_ ? validation_->sent() : CommunicationCounts{};
    }

    // The end: verification, the sections that the chapter prints and checks, the sample (also
    // after a run of no steps), the final save, the report's files. False if a check found an
    // error.
    bool finish(const std::function<bool(Report&)>& sections);

private:
    struct Begun {
        Step step;
        double at;  // seconds
    };
    double validation_loss();
    void end_step(const Begun& begun, double loss, double squared_norm);

    std::string chapter_;
    const Options& options_;
    StepShape shape_;
    Share share_;
    std::function<int64_t(int64_t)> sequences_of_;
    TokenFile file_;
    DataLoader loader_;
    std::optional<Validation> validation_;
    TrainingState state_;  // after the last step that has finished
    int64_t first_step_ = 0, begun_ = 0, done_ = 0, next_sample_ = 0;
    Trained what_;
    std::optional<Report> report_;
    std::optional<Saves> saves_;
    std::optional<Verifier> verifier_;
    std::optional<Begun> steps_[2];  // this one and the former one
    std::optional<SectionSpan> span_;
};

// What --node-size asks for: from here on what travels between the pretended nodes is slow. Run
// does it once the training starts; a comparison or a demo does it itself.
void slow_down(const Options& options);

// Runs the training after its estimate was found to fit. What may still not fit is workspace, or
// the verifying run beside it.
bool train_within_memory(const Options& options, const std::function<bool()>& train);

// The same step several times at learning rate 0, on the first samples: how long it takes, what it
// sends and holds. For --compare.
struct Measured {
    double step_seconds;         // the slowest rank's median
    CommunicationCounts counts;  // of all steps, on this rank; without the barriers between them
    int64_t steps;
    double communication_seconds, exposed_seconds;  // a step's, of the slowest rank
    double sent_bytes;                              // a step's, of this rank
};
// `settle` waits for what a step leaves under way. memory_peak_by_category() is of the measured
// steps, and so are the trace's spans where it is recording.
Measured measure(const DataLoader& loader, const Share& share, int64_t sequences, int64_t steps,
                 const std::function<void(Step&)>& step, const std::function<void()>& settle = {});

// Seconds of a call that all ranks make: the slowest rank's median. Calls are queued in batches,
// and the host waits for the device at the end of each, so that a GPU's time contains no waiting
// for the host.
double measure_call(const Communicator& ranks, const std::function<void()>& call);

// One rank's share of a step as the shared options ask for it.
StepShape step_shape(const Options& options, const LlamaConfig& config);
// Which samples the shared options ask for.
DataOptions data_options(const Options& options, int64_t seq);
// Sequences of a step. UserError: more than 10^7. Of sequences_of_step(), each of `replicas` has a
// part.
int64_t checked_sequences(double sequences);
int64_t sequences_of_step(const Options& options, int64_t replicas);

}  // namespace ultrascale
