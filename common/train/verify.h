// --verify: the same training on one device the plain way (plain_training.h), and how far this run
// is from it. Only the first 6 steps are compared: later ones drift apart by chaos, not by error.
//
// How far apart may two correct runs be? They add the same numbers in another order, so that each
// sum differs by rounding.
//
//   Step 1. AdamW has amplified nothing yet: fixed bounds of the gradient and the loss are enough
//   for most models. (Large weights and wide heads make a softmax sharp, and with it the gradient
//   sensitive. Where it misses its bound, that one is measured as below; but no measurement excuses
//   an error past a limit: a thousandth of the gradient in fp32, a quarter in bf16.)
//
//   Later steps. AdamW's first steps divide each element's gradient by its own size: the rounding
//   of a gradient that is nearly 0 becomes a step of the learning rate. Besides, some models
//   amplify rounding more than others. A fixed floor is enough for most runs. Where one misses it,
//   rank 0 measures: it trains the plain way twice more, from weights that start about a rounding
//   unit away. The bound is 32 times (bf16: 8 times) as far as those runs drift from the first one.
//
//   The weights. Their bound is never more than a quarter of the way that they moved in training,
//   ||w_6 - w_0||, or a run that does not train at all could pass. Past that, where correct runs
//   drift as far, verify cannot tell; but a run that has not moved half as far itself is wrong.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "plain_training.h"
#include "report/report.h"

namespace ultrascale {

inline constexpr int64_t verified_steps = 6;

// What two runs may always be apart by. Step 1: the relative L2 error of the gradient, the relative
// difference of the loss. The later steps: the largest difference of a loss, the relative L2 error
// of the weights after the last compared step.
struct VerifyBounds {
    double gradient, first_loss, later_loss, weights;
    double drifts;          // where more is measured: so many times the drift of correct runs
    double gradient_limit;  // what a measured bound of the gradient may not exceed
};
VerifyBounds verify_bounds(DType dtype);

class Verifier {
public:
    // Rank 0 trains the plain way at once, from where the run starts, while the others sleep; then
    // it tells them. Step s takes `batch_sizes[s]` sequences, `micro_batch` at a time (0: all at
    // once, unless something depends on which are together: the balance of experts, their
    // capacity). `change` adds to the plain model's parts what the run computes besides (experts).
    // Keeps the loader.
    Verifier(const Options& options, const LlamaConfig& config, const DataLoader& loader,
             std::vector<int64_t> batch_sizes, const std::function<void(Parts&)>& change = {},
             int64_t micro_batch = 0);

    // What the run under test did. `step` counts from 0; each rank compares what it holds, whole
    // parameters or parts of them. All call it.
    void gradient(const std::vector<TensorPart>& grads);  // of the first step, before clipping
    void after_step(int64_t step, double loss, const std::vector<TensorPart>& values);

    // Prints a line for each comparison and adds them to the report; false if a bound was missed,
    // or if verify cannot tell. Trains twice more on rank 0 where only a measured bound can decide.
    // All ranks call it and get the same answer.
    bool finish(Report& report);

private:
    struct Drift {
        double gradient = 0, loss = 0, weights = 0;
    };
    void tell_all_ranks();
    Drift measure_drift();
    Drift drift_of(const PlainTraining::Result& other, uint64_t displacement) const;

    VerifyBounds bounds_;
    std::optional<PlainTraining> plain_;  // of rank 0
    PlainTraining::Result reference_;
    // ||w_6 - w_0|| / ||w_6|| of the plain training; and of this run, where that is asked for.
    double moved_ = 0, run_moved_ = -1;
    // -1: not compared yet
    double gradient_error_ = -1, first_loss_error_ = -1, later_loss_error_ = -1, loss_error_ = -1,
           weights_error_ = -1;
};

}  // namespace ultrascale
