// An updater computes new weights from a step's gradients. Every technique with its own way of
// doing so derives from Updater: ZeRO's stages (02), mixed precision (08) and the buckets of 09.
// PlainUpdater below applies AdamW (or Muon) to all that a rank holds.
#pragma once

#include <functional>
#include <optional>

#include "comm/mesh.h"
#include "model/parts.h"
#include "setup.h"

namespace ultrascale {

// A technique that communicates during a step does it as hooks of the model, and in the calls
// around its micro-batches. All ranks make all calls, in this order.
class Updater : public Hooks {
public:
    // Gives the parameters their first values, from --load or --seed. Returns the state from which
    // training continues.
    virtual TrainingState start() = 0;
    virtual void begin_step(int64_t micro_batches) = 0;
    // Around each micro-batch's forward and backward, if they come one after the other.
    virtual void begin_micro_batch(int64_t /*micro_batch*/, bool /*last*/) {}
    virtual void end_micro_batch() {}
    // Or, if several are in flight (a pipeline), once, after the last backward: what the end of the
    // step's only micro-batch would do. Until then only the hooks say what was computed.
    void end_all_micro_batches() {
        begin_micro_batch(0, true);
        end_micro_batch();
    }
    // The sum of squares of the whole model's gradient, each element counted once: one fp64 number
    // on the device. The gradient is final when this is called, so it also calls on_gradient.
    Tensor squared_norm();
    // Updates the weights at this learning rate, from the gradient clipped by its norm.
    void step(double lr, const Tensor& squared_norm);
    virtual void finish() {}  // waits for unfinished work, before other code reads parameters
    // One fp64 number: how many of the ranks that have summed the norm were asked to stop (stop.h).
    // Empty if no ranks sum it.
    const Tensor& votes() const { return votes_; }

    // The parts that this rank holds, for verification and for saving.
    virtual std::vector<TensorPart> gradients() = 0;
    virtual std::vector<TensorPart> values() = 0;
    virtual std::vector<TensorPart> states() = 0;  // further state that a resumed run needs
    // Whether the gradient overflowed; the update then changes nothing.
    virtual bool overflowed() const { return false; }

    std::function<void()> on_gradient = {};  // called when the gradient is final

protected:
    virtual void update(double lr, const Tensor& squared_norm) = 0;
    Tensor own_squared_norm();  // this rank's part, which it computes alone; calls on_gradient
    virtual Tensor sum_squares() = 0;
    virtual const Communicator* norm_group() const { return nullptr; }  // whose parts are added

private:
    Tensor votes_;
};

// AdamW, or Muon, on all parameters that this rank holds. It learns from the parameters'
// descriptions which ranks hold what (model/parameter.h).
class PlainUpdater : public Updater {
public:
    // The parameters must have storage before PlainUpdater::start() is called. Without a mesh each
    // rank has the whole model. Keeps references.
    PlainUpdater(ParameterList& parameters, const Options& options, const Mesh* mesh = nullptr)
        : parameters_(parameters), options_(options), mesh_(mesh) {}

    TrainingState start() override;
    void begin_step(int64_t micro_batches) override { parameters_.begin_gradients(micro_batches); }
    std::vector<TensorPart> gradients() override { return parameters_.parts(&Parameter::grad); }
    std::vector<TensorPart> values() override { return parameters_.parts(&Parameter::value); }
    std::vector<TensorPart> states() override { return states_of({&*optimizer_, 1}, parameters_); }

protected:
    void update(double lr, const Tensor& squared_norm) override {
        optimizer_->step(lr, squared_norm);
    }
    Tensor sum_squares() override;
    const Communicator* norm_group() const override;

    ParameterList& parameters_;
    const Options& options_;
    const Mesh* mesh_;
    std::unique_ptr<AdamW> optimizer_;
};

}  // namespace ultrascale
