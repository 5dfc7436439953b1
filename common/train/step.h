// One training step: its samples, and its result. Every chapter's main.cpp writes the step out like
// this:
//
//     for (MicroBatch batch : step.micro_batches({&hooks})) {
//         Saved saved;
//         model.forward(batch, saved);
//         model.backward(batch, saved);
//     }
//     sum_gradients(model.parameters(), mesh);
//     const Tensor squared_norm = updater.squared_norm();
//     updater.step(step.learning_rate, squared_norm);
//     step.sum_loss(mesh.group("dp"));
//     step.finish(squared_norm);
//
// A training calls its step through run.h, and --compare through measure() (lab/measure), at
// learning rate 0.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "core/trace.h"
#include "data.h"
#include "hooks.h"
#include "model/parts.h"
#include "recordings.h"

namespace ultrascale {

// The value of a (1) fp64 tensor; the host waits for it.
inline double scalar(const Tensor& t) { return t.to_host<double>()[0]; }

// The targets over which the loss is averaged. batch: those of the step's batch. own_samples: those
// of this rank's samples, for a rank that trains independently of the others. micro_batch: those of
// each micro-batch; the mean then has the wrong weight if micro-batches ignore different numbers of
// targets.
enum class MeanOver { batch, own_samples, micro_batch };

// The samples of this rank. `count` groups of ranks take different samples (data parallelism); the
// ranks of a group, which share a model's work, take the same samples. Micro-batch m of replica r
// begins at the step's sample (m * count + r) * micro_batch.
struct DataSlice {
    int64_t micro_batch;  // sequences
    int64_t count = 1, replica = 0;
    MeanOver mean = MeanOver::batch;
    // Returns this rank's part of each sequence, if a group's ranks split sequences (context
    // parallelism). Empty: this rank takes whole sequences.
    std::function<HostBatch(const HostBatch&)> part = {};
};

class Step;

// A micro-batch on its way through the model, and a span in the trace during its lifetime.
struct MicroBatch : Context {
    MicroBatch(Step& step, int64_t m);

private:
    SectionSpan span_;
};

class Step {
public:
    // A step of `sequences` sequences from `first_sample` on. Throws UserError if all its targets
    // are ignored.
    Step(const DataLoader& loader, const DataSlice& slice, int64_t number, int64_t first_sample,
         int64_t sequences);

    const int64_t number;       // 1, 2, ...; a resumed run continues the count
    const int64_t sequences;    // over all ranks
    const int64_t accumulated;  // micro-batches per rank
    double learning_rate = 0;
    bool first = true;      // of this process's steps
    bool skipped = false;   // its gradient overflowed, and nothing was updated
    std::string note = {};  // for the step's line of progress: "seq 128"
    const Tensor sums;      // (2) fp64: the loss, and the votes to stop (stop.h)
    const Tensor loss;      // (1) its first number, to which this rank's micro-batches add

    // The micro-batches, one after the other; with `recordings`, those that are not replayed.
    // The technique's hooks are called in this order,
    // between those of the laboratory (watch_first, watch); nullptr: no hook.
    struct MicroBatches;
    MicroBatches micro_batches(std::initializer_list<Hooks*> hooks = {});
    // For a schedule with several micro-batches in flight: sets the same hooks, and returns
    // micro-batch m alone.
    void call_hooks(std::initializer_list<Hooks*> hooks);
    Context micro_batch(int64_t m);

    // Sums the loss over the ranks that saw other tokens, or other parts of the same sequences, and
    // beside it the votes to stop.
    void sum_loss(const Communicator& ranks);
    // Sets this rank's vote, or the votes of the ranks with which it has summed the norm.
    void vote();
    // Called at the end, when `sums` and the squared norm are those of the whole step. The host
    // waits for the device. The loss was multiplied by `scale`. Returns the squared norm.
    double finish(const Tensor& squared_norm, double scale = 1);
    void finish(double loss, double squared_norm, double votes);  // for values on the host
    // Names what was not finite in a finished step that was not skipped: "loss nan, gradient norm
    // inf". Empty if both were finite.
    const std::string& not_finite() const { return not_finite_; }
    bool stops() const { return stops_; }  // a rank was asked to stop; all ranks see it alike

    // The laboratory's hooks, which change no number; `watch_first` come before the technique's.
    std::vector<Hooks*> watch = {}, watch_first = {};
    // Called with each micro-batch that this rank reads, of the run's samples from `first` on.
    std::function<void(int64_t m, int64_t first, const HostBatch&)> on_batch = {};
    std::function<void(double loss, double squared_norm)> on_finish = {};
    const Tensor* norm_votes = nullptr;  // Updater::votes()
    Recordings* recordings = nullptr;    // --cuda-graph

private:
    friend MicroBatch;
    // Replays micro-batches from m on as long as there are recordings of them; returns the next.
    int64_t after_replays(int64_t m);
    int64_t first_sample_of(int64_t m) const {
        return first_sample_ + (m * slice_.count + slice_.replica) * slice_.micro_batch;
    }
    const DataLoader& loader_;
    DataSlice slice_;
    int64_t first_sample_, counted_ = 0;
    std::string not_finite_;
    bool stops_ = false;
    ExplainHooks explain_;
    HookList hooks_;
    std::optional<Context> read_;  // the micro-batch that after_replays() returned
};

struct Step::MicroBatches {
    struct Iterator {
        Step* step;
        int64_t m;
        MicroBatch operator*() const { return {*step, m}; }
        Iterator& operator++() {
            if (step->recordings) step->recordings->end();
            return m = step->after_replays(m + 1), *this;
        }
        bool operator!=(const Iterator& other) const { return m != other.m; }
    };
    Step* step;
    Iterator begin() const { return {step, step->after_replays(0)}; }
    Iterator end() const { return {step, step->accumulated}; }
};

}  // namespace ultrascale
