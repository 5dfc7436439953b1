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

#include "lab/report/report.h"
#include "lab/verify/verify.h"
#include "sampling.h"
#include "saves.h"
#include "setup.h"
#include "step.h"
#include "updater.h"
#include "validation.h"

namespace ultrascale {

// What a run trains: this rank's parts of it, and its description in the header.
struct TrainingSetup {
    Updater* updater;
    bool weights_only = false;  // saves hold no states
    // Options that a checkpoint records besides those that were given: defaults of this program
    // which another one does not share.
    OptionTexts options = {};
    // Forward only, for --val-data: adds this rank's part of the loss to context.loss.
    std::function<void(Context&)> forward = {};
    const Communicator* loss_group = nullptr;  // whose ranks have parts of that loss
    NextToken next_token = {};                 // for --sample
    // The technique's line in the header ("  sync    bucket: ..."), and the ranks' layout
    // ({"dp", 4}).
    std::string label = {}, technique = {};
    JsonFields layout = {};
    std::string validation_note = {};  // the end of the validation's line in the header
    // For verify: what else the plain training computes (experts), what that chooses, and its
    // micro-batch (0: the whole step at once). not_equal: why the run is not meant to equal the
    // plain training; empty if it is.
    std::function<void(ModuleFactories&)> plain_parts = {};
    Choices* choices = nullptr;
    int64_t plain_micro_batch = 0;
    std::string not_equal = {};
    // Or what rank 0 trains instead of the plain training: the first `steps` steps of this run, by
    // itself; then the bounds of the comparison must be given.
    std::function<std::unique_ptr<Reference>(const TrainingState& start, int64_t steps)> reference =
        {};
    std::optional<VerifyBounds> bounds = {};
    // The laboratory's, which changes no number: hooks that are called after the technique's
    // (step.h), and what is called at the end of a step, with its squared norm.
    std::vector<Hooks*> watch = {};
    std::function<void(const Step&, double squared_norm)> step_done = {};
    // The other ranks are only imagined (comm.h): the numbers mean nothing, and need not be finite.
    bool imagined = false;
};
// For a model that one process runs from the first layer to the last.
TrainingSetup training_setup(Llama& model, Updater& updater);

class Run {
public:
    // Opens the files; UserError if they cannot be read. `sequences_of`: the number of sequences of
    // step 0, 1, ..., over all ranks; by default --micro-batch x --grad-accum x slice.count.
    // `cuts`: into which shorter sequences the loader cuts samples (data.h).
    Run(std::string chapter, const Options& options, const StepShape& shape, const DataSlice& slice,
        std::function<int64_t(int64_t step)> sequences_of = {}, std::vector<SamplesCut> cuts = {});
    const DataLoader& loader() const { return loader_; }

    // The start of the training, from Updater::start().
    void load(const TrainingState& state) { state_ = state; }
    // Prints the header, and with --verify lets rank 0 train the plain way. Then starts the counts
    // of memory and communication.
    void start(TrainingSetup what);

    // Begins a step; returns nullptr after the last one. The previous step may still be unfinished
    // (in a pipeline whose update is confirmed in the next step's warm-up), but not the one before
    // that. After a step whose loss, norm or validation is not finite, which all ranks must see
    // alike, this one or finish() ends the run: UserError with Exit::not_finite, which names the
    // last finite checkpoint. So do weights that would be saved and are not finite.
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
    void stop_unless_finite();
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
    bool gradient_seen_ = false;   // verify has compared the first one
    std::string not_finite_ = {};  // what was not, after the last finished step
    double finished_at_ = 0;       // the last finished step, in seconds
    TrainingSetup what_;
    std::optional<Report> report_;
    std::optional<Saves> saves_;
    std::optional<Verifier> verifier_;
    std::optional<Begun> steps_[2];  // this step and the previous one
    std::optional<SectionSpan> span_;
};

// Applies --node-size: from here on messages between the simulated nodes are slow. Run calls it
// when the training starts; a comparison or a demo calls it itself.
void slow_down(const Options& options);

// Runs a training whose estimate fits. The workspace or the plain run of --verify may still not
// fit; the error then suggests options.
bool train_within_memory(const Options& options, const std::function<bool()>& train);

// A rank's share of a step, according to the shared options.
StepShape step_shape(const Options& options, const LlamaConfig& config);
// How to read the samples, according to the shared options.
DataOptions data_options(const Options& options, int64_t seq, std::vector<SamplesCut> cuts = {});
// The number of sequences in a step; UserError above 10^7. sequences_of_step(): for all `replicas`
// together.
int64_t checked_sequences(double sequences);
int64_t sequences_of_step(const Options& options, int64_t replicas);

}  // namespace ultrascale
