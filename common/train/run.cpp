#include "run.h"

#include <algorithm>
#include <cmath>
#include <csignal>
#include <utility>

#include "core/error.h"
#include "finite.h"
#include "stop.h"

namespace ultrascale {

TrainingSetup training_setup(Llama& model, Updater& updater) {
    return {.updater = &updater,
            .forward =
                [&](Context& context) {
                    updater.finish();
                    context.hooks = &updater;
                    Saved nothing;
                    nothing.disable();
                    model.forward({}, nothing, context);
                },
            .next_token =
                [&](const HostBatch& text) {
                    updater.finish();
                    return logits_of_next(model, text, &updater);
                }};
}

Run::Run(std::string chapter, const Options& options, const StepShape& shape,
         const DataSlice& slice, std::function<int64_t(int64_t)> sequences_of,
         std::vector<SamplesCut> cuts)
    : chapter_(std::move(chapter)),
      options_(options),
      shape_(shape),
      slice_(slice),
      sequences_of_(std::move(sequences_of)),
      file_(options.data_path(), shape.config.vocab),
      loader_(file_, data_options(options, shape, std::move(cuts))),
      state_{.seed = options.seed, .shuffled = options.shuffle, .seq = options.seq} {
    listen_for_stop();
    const int64_t sequences = sequences_of_step(options, slice.count);
    if (!sequences_of_) sequences_of_ = [sequences](int64_t) { return sequences; };
    if (!options.val_data.empty())
        validation_.emplace(options, shape.config.vocab, data_options(options, shape));
}

// How many lower ranks take the same samples. Ranks with the same place do the same, in other
// replicas of the model; if there is one replica, its ranks are compared with each other.
static int64_t place_in_replica(int64_t replica, int64_t replicas) {
    if (replicas == 1) return 0;
    const Communicator& world = Communicator::world();
    const std::vector<std::string> all = world.gather_strings(std::to_string(replica));
    return std::count(all.begin(), all.begin() + world.rank(), std::to_string(replica));
}

void Run::start(TrainingSetup what) {
    what_ = std::move(what);
    state_.options = options_.training_texts;
    // Defaults of this program that other programs do not share.
    state_.options["--micro-batch"] = fmt::format("{}", options_.micro_batch);
    state_.options["--grad-accum"] = fmt::format("{}", options_.grad_accum);
    for (const auto& [name, text] : what_.options) state_.options[name] = text;
    first_step_ = state_.step, next_sample_ = state_.next_sample;
    report_.emplace(chapter_, options_, shape_, options_.steps);
    const Communicator& world = Communicator::world();
    if (options_.profile || !options_.trace.empty())
        report_->group_of_times(place_in_replica(slice_.replica, slice_.count));
    if (options_.checksums)
        checksums_.emplace(*report_, slice_.replica, slice_.mean != MeanOver::own_samples);
    const bool ranks_share_a_model = what_.layout.size() > 1 || slice_.count < world.size();
    report_->configuration(sequences_of_(first_step_),
                           describe_data(options_, file_, loader_, state_),
                           ranks_share_a_model ? slice_.count : 0);
    if (!what_.label.empty()) report_->technique(what_.label, what_.technique, what_.layout);
    if (validation_)
        print(fmt::format("  valid.  {}{}", validation_->description(), what_.validation_note));
    if (what_.cuda_graph) recordings_ = make_recordings(options_, what_.no_graph);
    start_saves();
    saves_->print_plan(state_);
    const bool small = parameter_count(shape_.config) < 5'000'000;
    if (options_.steps > 0 && options_.verify.value_or(small)) {
        std::vector<int64_t> sizes;
        for (int64_t s = 0; s < std::min(options_.steps, verified_steps); ++s)
            sizes.push_back(sequences_of_(first_step_ + s));
        const int64_t steps = int64_t(sizes.size());
        if (what_.reference)
            verifier_.emplace([&] { return what_.reference(state_, steps); }, steps,
                              what_.bounds.value());
        else
            verifier_.emplace(options_, shape_.config, loader_, sizes, what_.plain_parts,
                              what_.plain_micro_batch, what_.choices, what_.bounds);
    }
    what_.updater->on_gradient = [this] {
        Updater& updater = *what_.updater;
        if (checksums_) checksums_->gradients(updater.gradients());
        // --verify compares the first gradient that has not overflowed.
        if (verifier_ && !gradient_seen_ && !updater.overflowed()) {
            gradient_seen_ = true;
            allow_longer_waits();  // rank 0 compares
            phase("verification", [&] { verifier_->gradient(updater.gradients()); });
        }
        explain("global gradient norm, clip, AdamW");
    };
    memory_reset_peak();
    if (world.size() > 1) world.barrier();  // the plain run kept rank 0 busy
    if (!what_.imagined) slow_down(options_);
    communication_reset_counts();
    allow_longer_waits();
}

// In the first step, and when one rank may be busy with something that the others do not do.
void Run::allow_longer_waits() const {
    limit_waits(10 * options_.hang_seconds, 10 * options_.hang_seconds, false);
}

void Run::start_saves() {
    const auto finite = [this] { return all_finite(values()); };
    const auto what = [this] {
        SaveOptions save{.dtype = options_.dtype, .spread_over = &Communicator::world()};
        if (!what_.weights_only) save.state = &state_, save.optimizer = what_.updater->states();
        return save;
    };
    if (!options_.save_async) {
        const auto write = [=, this](const std::string& dir) {
            save_checkpoint(dir, shape_.config, values(), what());
        };
        saves_.emplace(options_, write, finite);
        return;
    }
    SaveOptions from_copies = what();
    from_copies.from_copies = true;
    copies_.emplace(shape_.config, values(), from_copies);
    report_->checkpoint_copies(copies_->own_bytes());
    saves_.emplace(
        options_, [this](const std::string& dir) { copies_->write(dir); }, finite,
        SaveCopies{[=, this] { copies_->copy(values(), what()); }, copies_->own_bytes()});
}

Step* Run::next() {
    stop_unless_finite();
    check(begun_ - done_ <= 1, "the step before the previous one has not finished");
    if (begun_ == options_.steps || stops_) return nullptr;
    const int64_t index = first_step_ + begun_, sequences = sequences_of_(index);
    span_.reset();
    span_.emplace("step", index + 1);
    const double now = now_seconds();
    std::optional<Begun>& begun = steps_[begun_ % 2];
    begun.reset();
    begun.emplace(Step(loader_, slice_, index + 1, next_sample_, sequences), now);
    Step& step = begun->step;
    step.first = begun_ == 0;
    step.learning_rate = learning_rate_of(options_, first_step_, index);
    step.watch = what_.watch;
    if (checksums_) take_checksums(step);
    step.norm_votes = &what_.updater->votes();
    step.recordings = recordings_.get();
    // A slow step is no hang: neither the first one, nor one three times as long as an earlier one.
    const double hang = options_.hang_seconds;
    if (begun_ > 0 && hang > 0) limit_waits(std::max(hang, 3 * longest_step_), 10 * hang, true);
    step.on_finish = [this, &begun](double loss, double squared) {
        end_step(*begun, loss, squared);
    };
    next_sample_ += sequences;
    ++begun_;
    explain_enable(options_.explain && step.first && Communicator::world().rank() == 0);
    explain("gradients begin anew");
    return &step;
}

void Run::take_checksums(Step& step) {
    checksums_->begin_step(step.number);
    step.watch_first = {&*checksums_};
    step.on_batch = [this](int64_t m, int64_t first, const HostBatch& batch) {
        checksums_->batch(m, batch, loader_.rows(first, slice_.micro_batch));
    };
}

void Run::end_step(const Begun& begun, double loss, double squared_norm) {
    const Step& step = begun.step;
    allow_longer_waits();
    explain_enable(false);
    if (what_.step_done) what_.step_done(step, squared_norm);
    if (begun_ - done_ == 1) span_.reset();
    const int64_t tokens = step.sequences * shape_.seq;
    state_ = after_step(state_, options_, file_, step.sequences, shape_.seq);
    // If a step began before the previous one was finished, its time counts from the end of that
    // one.
    const double now = now_seconds(), since = std::max(begun.at, std::exchange(finished_at_, now));
    StepRecord record{state_.step,        loss,        std::sqrt(squared_norm),
                      step.learning_rate, now - since, tokens};
    longest_step_ = std::max(longest_step_, now - since);
    const bool last = done_ + 1 == options_.steps;
    record.note = step.skipped ? "overflow: skipped" : step.note;
    if (!what_.imagined) not_finite_ = step.not_finite();
    if (validation_ && validation_->due(state_.step, last) && not_finite_.empty()) {
        record.val_loss = validation_loss();
        not_finite_ = not_finite({{"validation loss", *record.val_loss}});
    }
    report_->step(record);
    if (checksums_) checksums_->end_step(state_.step, values());
    ++done_;
    asked_ = asked_ || step.stops();
    stops_ = asked_ && (!what_.may_stop || what_.may_stop(done_));
    if (!not_finite_.empty()) return;
    if (verifier_ && done_ <= verified_steps) verifier_->after_step(done_ - 1, loss, values());
    if (!saves_->after_step(state_.step)) not_finite_ = "weights";
}

void Run::stop_unless_finite() {
    if (not_finite_.empty()) return;
    saves_->wait();
    const std::string& last = saves_->last_finite();
    what_.updater->finish();
    span_.reset();
    report_->value("not_finite", "step", double(state_.step));
    report_->text("not_finite", "what", not_finite_);
    report_->text("not_finite", "last_finite_checkpoint", last);
    report_->finish();
    throw UserError(fmt::format("step {}: not finite: {}; {}{}", state_.step, not_finite_,
                                begun_ < options_.steps ? "training stops; " : "",
                                last.empty() ? "there is no finite checkpoint"
                                             : "the last finite checkpoint: " + last),
                    Exit::not_finite);
}

void Run::stop_if_asked() {
    if (!stops_ || done_ == options_.steps) return;
    what_.updater->finish();
    span_.reset();
    saves_->wait();
    if (!saves_->at_end(state_.step)) not_finite_ = "weights";
    stop_unless_finite();
    report_->value("stopped", "step", double(state_.step));
    report_->finish();
    const char* const by = stop_signal() == SIGTERM   ? "SIGTERM"
                           : stop_signal() == SIGUSR1 ? "SIGUSR1"
                                                      : "another rank's signal";
    throw UserError(fmt::format("{} after step {}; {}", by, state_.step,
                                options_.save.empty() ? "nothing is saved without --save"
                                                      : "--resume goes on from " + options_.save),
                    Exit::stopped);
}

// These functions first wait until the last update has finished.
std::vector<TensorPart> Run::values() {
    what_.updater->finish();
    return what_.updater->values();
}

double Run::validation_loss() {
    return validation_->loss(what_.forward, what_.loss_group, slice_.part);
}

bool Run::finish(const std::function<bool(Report&)>& sections) {
    stop_unless_finite();
    check(done_ == begun_, "a step has not finished");
    stop_if_asked();
    limit_waits(0, 0, false);  // rank 0 may measure drift, or sample
    bool ok = true;
    if (options_.steps > 0) {
        if (verifier_) ok = verifier_->finish(*report_) || !what_.not_equal.empty();
        if (verifier_ && !what_.not_equal.empty()) {
            print(fmt::format("  not meant to be equal: {}", what_.not_equal));
            report_->text("verify", "result", "not meant to be equal");
        }
        ok = sections(*report_) && ok;
        if (recordings_) recordings_->report(*report_);
    } else if (validation_) {  // of the loaded model
        const double loss = validation_loss();
        report_->validation(state_.step, loss);
        not_finite_ = not_finite({{"validation loss", loss}});
        stop_unless_finite();
    }
    if (options_.sample > 0) print_sample(what_.next_token, options_, shape_);
    saves_->wait();
    saves_->report_times(*report_);
    if (checksums_) checksums_->finish();
    if (!saves_->at_end(state_.step)) not_finite_ = "weights";
    stop_unless_finite();
    report_->finish();
    return ok;
}

void slow_down(const Options& options) {
    if (options.inter_gbps == 0) return;  // machines need no simulation
    print(fmt::format("  nodes   {} of {}, simulated: {:.4g} Gbit/s for each rank's network card",
                      Communicator::world().size() / options.node_size,
                      format_count(options.node_size, "rank"), options.inter_gbps));
    pretend_nodes(options.node_size, options.inter_gbps);
}

bool train_within_memory(const Options& options, const std::function<bool()>& train) {
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

}  // namespace ultrascale
