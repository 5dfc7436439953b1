// Records the numbers that the report needs from the steps. Training does not need them.
#pragma once

#include "../2_fresh_gradients.h"
#include "../3_batch_size.h"
#include "memory_anatomy.h"
#include "train/gradients.h"
#include "train/step.h"

namespace ultrascale::single_gpu {

class StepRecords : public Hooks {
public:
    // `fresh` is nullptr without --fresh-grads.
    StepRecords(const ParameterList& parameters, bool noise_scale, FreshGradients* fresh)
        : parameters_(parameters), noise_scale_(noise_scale), fresh_(fresh) {}

    void before(const Unit&, Pass, const Context&) override {
        if (!std::exchange(begun_, true)) timeline.begin();
    }
    void forward_done(const Saved& saved, const Context&) override {
        if (!std::exchange(seen_, true)) kept.collect(saved);
    }
    // With --noise-scale: records the norm of the first micro-batch's gradient when its backward
    // has ended.
    void after(const Unit& unit, Pass pass, const Context& batch) override {
        if (noise_scale_ && pass == Pass::backward && unit.index == 0 && batch.micro_batch == 0)
            first_squared_norm_ = scalar(squared_gradient_norm(parameters_));
    }
    void step_done(const Step& step, double squared_norm) {
        if (fresh_) fresh_->free(parameters_);
        // The first micro-batch's gradient was divided by the number of all of the step's targets:
        // multiplied by a, it is the mean over its own.
        const double a = double(step.accumulated);
        if (noise_scale_ && step.accumulated > 1)
            noise.add(double(step.sequences) / a, first_squared_norm_ * (a * a),
                      double(step.sequences), squared_norm);
        timeline.step_ended();
    }

    NoiseScale noise;
    KeptByForward kept;
    StepTimeline timeline;

private:
    const ParameterList& parameters_;
    bool noise_scale_, begun_ = false, seen_ = false;
    FreshGradients* fresh_;
    double first_squared_norm_ = 0;
};

}  // namespace ultrascale::single_gpu
