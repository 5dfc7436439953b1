// Everything around a chapter's training step: the data, the printed header, resuming an earlier
// run, verification, validation, timing, records, saves and the report.
//
//     Run run("02_zero", options, shape, {.micro_batch = B, .count = N, .replica = r});
//     ...                                             the model, the technique, the optimizer
//     run.load(updater.start());
//     run.start({...});
//     while (Step* step = run.next()) train_step(*step, ...);        step.h
//     return run.finish([&](Report& report) { ... });
//
// All ranks make all calls.
#pragma once

#include "lab/report/checksums.h"
#include "lab/report/report.h"
#include "lab/verify/verify.h"
#include "sampling.h"
#include "saves.h"
#include "setup.h"
#include "step.h"
#include "step_sizes.h"
#include "updater.h"
#include "validation.h"

namespace ultrascale {

// What a run trains: this rank's parts of the model, and their description in the header.
struct TrainingSetup {
    Updater* updater;
    bool weights_only = false;  // saves contain no optimizer states
    // Options that a checkpoint records in addition to the given ones: defaults of this program
    // that another program does not share.
    OptionTexts options = {};
    // A forward only, for --val-data. It adds this rank's part of the loss to context.loss.
    std::function<void(Context&)> forward = {};
    const Communicator* loss_group = nullptr;  // the ranks that have parts of that loss
    NextToken next_token = {};                 // for --sample
    // The technique's line in the header ("  sync    bucket: ..."), and the ranks' layout
    // ({"dp", 4}).
    std::string label = {}, technique = {};
    JsonFields layout = {};
    std::string validation_note = {};  // the end of the validation's line in the header
    // For verify: the parts in which the plain training differs from a plain Llama (experts), their
    // choices, and its micro-batch (0: the whole step at once). not_equal: why the run is not meant
    // to equal the plain training; empty if it is.
    std::function<void(ModuleFactories&)> plain_parts = {};
    Choices* choices = nullptr;
    int64_t plain_micro_batch = 0;
    std::string not_equal = {};
    // What rank 0 trains in place of the plain training, if given: the first `steps` steps of this
    // run on its own. Then `bounds` of the comparison must be given, too.
    std::function<std::unique_ptr<Reference>(const TrainingState& start, int64_t steps)> reference =
        {};
    std::optional<VerifyBounds> bounds = {};
    // The laboratory's functions, which change no number: hooks that are called after the
    // technique's (step.h), and a function that is called at the end of a step with its squared
    // norm.
    std::vector<Hooks*> watch = {};
    std::function<void(const Step&, double squared_norm)> step_done = {};
    // --cuda-graph: micro-batches are recorded and replayed (recordings.h). no_graph: why this
    // training's cannot be.
    bool cuda_graph = false;
    const char* no_graph = nullptr;
    // Whether a signal may stop the run after this many of its steps; if empty, it always may.
    std::function<bool(int64_t done)> may_stop = {};
    // The other ranks are only imagined (comm.h): the numbers mean nothing and need not be finite.
    bool imagined = false;
};
// The setup for a model that one process runs from the first layer to the last.
TrainingSetup training_setup(Llama& model, Updater& updater);

class Run {
public:
    // Opens the files; throws UserError if they cannot be read. `sequences_of`: the number of
    // sequences of step 0, 1, ... over all ranks; by default --micro-batch x --grad-accum x
    // slice.count. `cuts`: the shorter sequences into which the loader cuts samples (data.h).
    Run(std::string chapter, const Options& options, const StepShape& shape, const DataSlice& slice,
        std::function<int64_t(int64_t step)> sequences_of = {}, std::vector<SamplesCut> cuts = {});
    const DataLoader& loader() const { return loader_; }

    // Sets the state in which the training starts, from Updater::start().
    void load(const TrainingState& state) { state_ = state; }
    // Prints the header, and with --verify lets rank 0 train the plain way. Then starts the counts
    // of memory and communication.
    void start(TrainingSetup what);

    // Begins a step; returns nullptr after the last one, or when a signal has asked the run to stop
    // (stop.h): finish() then saves and throws UserError with Exit::stopped. The previous step may
    // still be unfinished (in a pipeline whose update is confirmed in the next step's warm-up), but
    // not the one before that. If a step's loss, norm or validation is not finite, which all ranks
    // must see alike, this call or finish() ends the run: it throws UserError with
    // Exit::not_finite, which names the last finite checkpoint. Weights that should be saved and
    // are not finite end it, too.
    Step* next();
    int64_t steps_done() const { return done_; }  // finished steps
    Report& report() { return *report_; }
    CommunicationCounts validation_communication() const {  // belongs to no step
        return validation_ ? validation_->sent() : CommunicationCounts{};
    }

    // Ends the run: verification, the sections that the chapter prints and checks, the sample (even
    // after a run without steps), the final save, the report's files. Returns false if a check
    // found an error.
    bool finish(const std::function<bool(Report&)>& sections);

private:
    struct Begun {
        Step step;
        double at;  // seconds
    };
    std::vector<TensorPart> values();
    double validation_loss();
    void start_saves();
    void stop_unless_finite();
    void stop_if_asked();
    void allow_longer_waits() const;
    void take_checksums(Step& step);
    void end_step(const Begun& begun, double loss, double squared_norm);

    std::string chapter_;
    const Options& options_;
    StepShape shape_;
    DataSlice slice_;
    std::function<int64_t(int64_t)> sequences_of_;
    TokenFile file_;
    DataLoader loader_;
    std::optional<Validation> validation_;
    TrainingState state_;  // after the last finished step
    int64_t first_step_ = 0, begun_ = 0, done_ = 0, next_sample_ = 0;
    bool gradient_seen_ = false;          // verify has compared the first gradient
    std::string not_finite_ = {};         // names what was not finite after the last finished step
    bool asked_ = false, stops_ = false;  // to stop; now it does
    double longest_step_ = 0;             // in seconds
    double finished_at_ = 0;              // when the last finished step ended, in seconds
    TrainingSetup what_;
    std::optional<Report> report_;
    std::optional<Checksums> checksums_;
    std::optional<CheckpointSave> copies_;  // --save-async
    std::optional<Saves> saves_;
    std::unique_ptr<Recordings> recordings_;  // --cuda-graph, if it is possible
    std::optional<Verifier> verifier_;
    std::optional<Begun> steps_[2];  // this step and the previous one
    std::optional<SectionSpan> span_;
};

// Applies --node-size: from now on messages between the simulated nodes are slow. Run calls it when
// the training starts; a comparison or a demo calls it itself.
void slow_down(const Options& options);

// Runs a training whose estimate fits in memory. If the workspace or the plain run of --verify
// still does not fit, the error suggests options.
bool train_within_memory(const Options& options, const std::function<bool()>& train);

}  // namespace ultrascale
