// ZeRO-1 with nothing else (--plain). In data parallelism all n ranks keep the optimizer's states,
// the same numbers n times. But a rank that updates only 1/n of the weights needs the states of
// only these, and the summed gradient of only these. So after the last backward of a step:
//
//     gradients   [ rank 0 | rank 1 | rank 2 | rank 3 ]   each rank has its own, of its own samples
//                       |  reduce-scatter: rank r receives the sum of the r-th part
//     AdamW           [ rank r ]                          with 1/n of the states
//                       |  all-gather: everybody collects all parts
//     weights     [ rank 0 | rank 1 | rank 2 | rank 3 ]   all new, the same on all ranks
//
// An all-reduce is a reduce-scatter followed by an all-gather, so this sends what data parallelism
// sends: 2 (n-1)/n numbers a weight. (In MPI they are MPI_Reduce_scatter and MPI_Allgather, on GPUs
// ncclReduceScatter and ncclAllGather.) Rajbhandari et al. 2020, https://arxiv.org/abs/1910.02054.
//
// A training (train_step in main.cpp) calls the class below, and its base class, in this order:
//
//     start                       once: weights and gradients get memory, AdamW its part
//     begin_step                  the first contribution to a gradient will overwrite it
//         begin_micro_batch       for each of the step's micro-batches
//         (the model's forward and backward add to gradients_)
//         end_micro_batch         after the last one: the reduce-scatter
//     squared_norm: sum_squares   for the norm, by which the gradient is clipped
//     step: update                AdamW on this rank's part, and the all-gather
//
// Three things are missing, and the files after this one add them. Nothing computes while the ranks
// communicate (a call whose Work is not kept waits at once: comm.h); the gradients are whole on
// every rank; so are the weights.
#pragma once

#include "comm/comm.h"
#include "core/trace.h"
#include "train/gradients.h"
#include "train/updater.h"

namespace ultrascale::zero {

struct Place {
    Parameter* parameter;
    int64_t at;  // where it begins among all numbers
};

// What changes when AdamW no longer updates all weights on each rank (train/updater.h).
class PlainZero1 : public PlainUpdater {
public:
    // All `ranks` have the same model, and each trains on samples of its own. The arguments must
    // live as long as this object.
    PlainZero1(ParameterList& parameters, const Communicator& ranks, const Options& options)
        : PlainUpdater(parameters, options), ranks_(ranks) {
        // A part is 1/n of the model's numbers, rounded up to a multiple of 8, so that it begins at
        // a multiple of 16 bytes. The parameters lie one after the other; the end is padding.
        const int64_t n = ranks.size(), grain = 8;
        part_ = (parameters.local_numel() + n * grain - 1) / (n * grain) * grain;
        for (int64_t at = 0; const auto& parameter : parameters) {
            places_.push_back({parameter.get(), at});
            at += parameter->local_numel();
        }
    }

    TrainingState start() override {
        const int64_t all = ranks_.size() * part_, begin = ranks_.rank() * part_;
        weights_ = Tensor::zeros({all}, options_.dtype, Memory::parameter);
        gradients_ = Tensor::zeros({all}, options_.grad_dtype(), Memory::gradient);
        for (const auto& [parameter, at] : places_) {
            // Each parameter's value and grad become views of these two.
            bind_to_flat({parameter}, weights_.slice(at, all), &Parameter::value);
            bind_to_flat({parameter}, gradients_.slice(at, all), &Parameter::grad);
            // This rank's part contains all of it, a piece that may begin in the middle of a row,
            // or nothing. AdamW looks at each number alone, so it does not care.
            const int64_t first = std::max(at, begin),
                          last = std::min(at + parameter->local_numel(), begin + part_);
            if (first < last)  // a piece, and where it begins in the parameter
                mine_.push_back({parameter, first - at, weights_.slice(first, last),
                                 gradients_.slice(first, last)});
        }
        load_or_initialize(options_, parameters_);  // first values: a checkpoint's, or random ones
        optimizer_ = make_optimizer(mine_, options_.optimizer);
        return resume_or_start(options_, {&*optimizer_, 1}, parameters_);
    }

    void begin_micro_batch(int64_t, bool last) override { last_ = last; }
    // exercise 02.6 begin: the sums; the norm of all parts; AdamW on this rank's part; all weights
    void end_micro_batch() override {
        if (!last_) return;            // the next backward adds to the gradients
        parameters_.check_complete();  // fails if a part of the model forgot its contribution
        // Output, input: the sum overwrites this rank's part. phase() names it in the timeline.
        phase("wait for gradients", [&] { ranks_.reduce_scatter(part(gradients_), gradients_); });
    }

    // The squares of this rank's part; the caller adds up those of the ranks in norm_group().
    Tensor sum_squares() override { return sum_of_squares({part(gradients_)}); }
    const Communicator* norm_group() const override { return &ranks_; }

    void update(double learning_rate, const Tensor& squared_norm) override {
        optimizer_->step(learning_rate, squared_norm);
        ranks_.all_gather(weights_, part(weights_));
    }
    // exercise 02.6 end

    // The sums that this rank holds, for --verify.
    std::vector<TensorPart> gradients() override {
        std::vector<TensorPart> sums;
        for (const AdamW::Item& item : mine_)
            sums.emplace_back(*item.parameter, item.grad, item.begin);
        return sums;
    }

protected:
    Tensor part(const Tensor& all) const {  // this rank's
        return all.slice(ranks_.rank() * part_, (ranks_.rank() + 1) * part_);
    }

    const Communicator& ranks_;
    int64_t part_;                // numbers in a rank's part
    std::vector<Place> places_;   // of the parameters
    Tensor weights_, gradients_;  // (n part)
    std::vector<AdamW::Item> mine_;
    bool last_ = true;  // whether it is the step's last micro-batch
};

}  // namespace ultrascale::zero
