// The references of --verify. Two comparisons find two kinds of mistakes:
//
//     this run   <->  the same recipe on one device       a rank that steps alone, a gradient that
//                                                         is unscaled twice
//     that       <->  plain fp32, the first gradient      a product with the wrong scale: it is
//                                                         wrong on one device, too
//
// The first difference comes from rounding in another order, the second from the recipe's formats.
// bounds.h has their bounds.
#pragma once

#include <fmt/format.h>

#include "../mixed_training.h"
#include "bounds.h"
#include "lab/verify/whole_values.h"
#include "train/step.h"

namespace ultrascale::mixed_precision {

using TrainStep = std::function<void(Step&, MixedTraining&, const Mesh&)>;

class MixedReference : public Reference {
public:
    // `start`: the run's. `one`: a mesh of this rank alone.
    MixedReference(const Options& options, const StepShape& shape, PrecisionOptions chosen,
                   const DataLoader& loader, const TrainingState& start,
                   std::vector<int64_t> sequences, const Mesh& one, TrainStep train_step)
        : options_(options),
          shape_(shape),
          chosen_(std::move(chosen)),
          loader_(loader),
          state_(start),
          sequences_(std::move(sequences)),
          one_(one),
          train_step_(std::move(train_step)) {}

    Result train(uint64_t displacement, size_t steps) override {
        const Aside aside;
        ModelOptions model = shape_.model;
        model.recompute = Recompute::none, model.loss_chunk = 0;
        model.attention = displacement == 0 ? AttentionKind::naive : AttentionKind::flash;
        MixedTraining training(shape_.config, model, chosen_, options_);
        start_.empty() ? remember_start(training) : start_displaced(training, displacement);
        Result result;
        int64_t next_sample = state_.next_sample;
        training.on_gradient = [&] {
            if (result.gradient.empty() && !training.overflowed())
                result.gradient = values(training.gradients());
        };
        for (size_t s = 0; s < steps; ++s) {
            const int64_t index = state_.step + int64_t(s);
            Step step(loader_, {.micro_batch = options_.micro_batch}, index + 1, next_sample,
                      sequences_[s]);
            step.first = s == 0;
            step.learning_rate = learning_rate_of(options_, state_.step, index);
            step.on_finish = [&](double loss, double) { result.losses.push_back(loss); };
            train_step_(step, training, one_);
            next_sample += sequences_[s];
        }
        result.weights = values(training.values());
        if (displacement == 0) compare_with_fp32(training, result);
        return result;
    }

    std::vector<float> start_of(const std::string& name, uint64_t displacement) const override {
        return displaced(start_.at(name), name, displacement, chosen_.recipe.activations);
    }

    // Returns -1 if nothing was compared (a resumed run, or a first step that overflowed).
    double away_from_fp32() const { return away_; }

private:
    static Values values(const std::vector<TensorPart>& parts) {
        Values all;
        for (const TensorPart& part : parts) all[part.name] = part.tensor.to_host_float();
        return all;
    }
    void remember_start(MixedTraining& training) {
        training.start();
        start_ = values(training.values());
        for (const TensorPart& part : training.states()) {
            std::vector<char> bytes(size_t(part.tensor.bytes()));
            part.tensor.copy_to_host(bytes.data());
            states_.push_back(std::move(bytes));
        }
    }
    void start_displaced(MixedTraining& training, uint64_t displacement) const {
        size_t i = 0;
        for (const TensorPart& part : training.states()) {
            Tensor tensor = part.tensor;
            tensor.copy_from_host(states_[i++].data());
        }
        std::vector<TensorPart> weights;
        for (const auto& p : training.model.parameters())
            weights.emplace_back(*p, Tensor::from_host<float>(start_of(p->name, displacement),
                                                              p->local_shape(), Memory::workspace));
        training.set_weights(weights);
        training.resume(state_.step);
    }

    // Trains one step in fp32, the plain way.
    void compare_with_fp32(const MixedTraining& training, const Result& result) {
        const std::vector<int64_t>& skipped = training.loss_scale.skipped();
        const bool first_skipped = !skipped.empty() && skipped.front() == state_.step + 1;
        if (state_.step > 0 || first_skipped || result.gradient.empty()) return;
        Options options = options_;
        options.dtype = DType::fp32, options.fp32_grads = false;
        PlainTraining plain(options, shape_.config, loader_, {sequences_.front()}, {},
                            options.micro_batch);
        const Values exact = plain.train(0, 1).gradient;
        double apart = 0;
        for (const auto& [name, want] : exact) {
            const std::vector<float>& got = result.gradient.at(name);
            for (size_t i = 0; i < want.size(); ++i) apart += square(double(got[i]) - want[i]);
        }
        away_ = std::sqrt(apart) / norm(exact);
    }

    Options options_;
    StepShape shape_;
    PrecisionOptions chosen_;
    const DataLoader& loader_;
    TrainingState state_;
    std::vector<int64_t> sequences_;
    const Mesh& one_;
    TrainStep train_step_;
    Values start_;
    std::vector<std::vector<char>> states_;
    double away_ = -1;
};

}  // namespace ultrascale::mixed_precision
