// One training step, as every chapter's main.cpp writes it out: what it trains on, and what becomes
// of its result. A chapter's step reads
//
//     for (MicroBatch micro_batch : step.micro_batches({&hooks})) {
//         Saved saved;
//         phase("forward", [&] { model.forward({}, saved, micro_batch); });
//         phase("backward", [&] { model.backward({}, saved, micro_batch); });
//     }
//     ...                                   gradients: communication
//     step.verify_gradient();
//     ...                                   norm, update, communication of the loss
//     step.finish(squared_norm);
//
// The same function is called by the training (run.h) and, at learning rate 0, by measure().
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "comm/comm.h"
#include "core/trace.h"
#include "data.h"
#include "hooks.h"
#include "model/parts.h"

namespace ultrascale {

// Of a (1) fp64 tensor; the host waits for it.
inline double scalar(const Tensor& t) { return t.to_host<double>()[0]; }

// A span in the trace's lane "phase"; what belongs to no unit of the model carries its name.
template <class F>
auto phase(std::string_view name, F work) {
    OpSpan span(name, 0, 0, "phase");
    const TraceName what(TraceName::pass, name);
    return work();
}

// Over which targets the mean of the loss goes: all of the step's batch; those that this rank takes
// (it trains for itself); each micro-batch's own, and the mean of these.
enum class MeanOver { batch, own_samples, micro_batch };

// Which samples this rank takes. `count` groups of ranks take different ones (data parallelism);
// the ranks of a group, which share a model's work, the same. Micro-batch m of replica r begins at
// sample (m * count + r) * micro_batch of the step.
struct Share {
    int64_t micro_batch;  // sequences
    int64_t count = 1, replica = 0;
    MeanOver mean = MeanOver::batch;
    // What this rank takes of each sequence, where the ranks of a group cut them (context
    // parallelism). None: all of it.
    std::function<HostBatch(const HostBatch&)> part = {};
};

class Step;

// What travels through the model; a span in the trace as long as it lives.
struct MicroBatch : Context {
    MicroBatch(Step& step, int64_t m);

private:
    SectionSpan span_;
};

class Step {
public:
    // Of `sequences` sequences from `first_sample` on. UserError: none of its targets counts.
    Step(const DataLoader& loader, const Share& share, int64_t number, int64_t first_sample,
         int64_t sequences);

    const int64_t number;       // 1, 2, ...; goes on where a run is resumed
    const int64_t sequences;    // of all ranks
    const int64_t accumulated;  // micro-batches of each rank
    double learning_rate = 0;
    bool first = true;   // of this process
    const Tensor loss;   // (1) fp64: what this rank's micro-batches add to

    // The micro-batches one after the other. The hooks are called in this order; nullptr: none.
    struct MicroBatches;
    MicroBatches micro_batches(std::initializer_list<Hooks*> hooks = {});
    // For a schedule that has several under way: the same hooks, and micro-batch m alone.
    void call_hooks(std::initializer_list<Hooks*> hooks);
    Context micro_batch(int64_t m);

    // Where the gradients are what the update will see: compares them in the first step, if that is
    // asked for.
    void verify_gradient() {
        if (on_gradient) on_gradient();
    }
    // At the end. The loss and the squared norm are the whole step's now: the host waits for the
    // device. Returns the latter.
    double finish(const Tensor& squared_norm);

    std::function<void()> on_gradient = {};
    std::function<void(double loss, double squared_norm)> on_finish = {};

private:
    int64_t first_sample_of(int64_t m) const {
        return first_sample_ + (m * share_.count + share_.replica) * share_.micro_batch;
    }
    const DataLoader& loader_;
    Share share_;
    int64_t first_sample_, counted_ = 0;
    ExplainHooks explain_;
    HookList hooks_;
};

struct Step::MicroBatches {
    struct Iterator {
        Step* step;
        int64_t m;
        MicroBatch operator*() const { return {*step, m}; }
        Iterator& operator++() { return ++m, *this; }
        bool operator!=(const Iterator& other) const { return m != other.m; }
    };
    Step* step;
    Iterator begin() const { return {step, 0}; }
    Iterator end() const { return {step, step->accumulated}; }
};

}  // namespace ultrascale
