// --verify compares this run with the same training on one device, the plain way
// (plain_training.h). It compares only the first 6 steps: later ones differ by chaotic
// amplification of rounding, not by errors.
//
// How far apart may two correct runs be? They add the same numbers in a different order, so each
// sum differs by rounding.
//
//   Step 1. AdamW has amplified nothing yet: fixed bounds for the gradient and the loss are enough
//   for most models. (Large weights and wide heads make a softmax sharp and thus the gradient
//   sensitive. If the gradient misses its bound, the bound is measured as below, but no measurement
//   excuses an error above a limit: a thousandth of the gradient in fp32, a quarter in bf16.)
//
//   Later steps. AdamW's first steps divide each element's gradient by its own magnitude, so the
//   rounding error of a gradient that is nearly 0 becomes a step of the size of the learning rate.
//   Some models also amplify rounding more than others. A fixed bound is enough for most runs. If a
//   run misses it, rank 0 trains the plain way twice more, from weights that are about a rounding
//   unit away. The measured bound is 32 times (bf16: 8 times) the distance to which those runs
//   drift from the first one.
//
//   Choices. A router of experts compares numbers; where two are equal up to rounding, correct
//   programs may choose differently, and then their results differ by far more than rounding. If
//   the run chose differently from the plain training, that one is repeated and follows the run: it
//   makes the run's choices, and measures how far apart the compared numbers were (the margin, as a
//   share of their size). Then the bounds above hold as always, and the margins have bounds too: a
//   fixed one and, if a margin misses it, one measured in the same way, by how far the compared
//   numbers of plain runs drift apart.
//
//   The weights. Their bound is at most a quarter of the distance that they moved in training,
//   ||w_6 - w_0||; otherwise a run that does not train at all could pass. If the error is larger
//   and correct runs drift as far, verify cannot tell; but a run whose weights moved less than half
//   that distance is wrong.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradient_groups.h"
#include "lab/report/report.h"
#include "plain_training.h"

namespace ultrascale {

inline constexpr int64_t verified_steps = 6;

// The fixed bounds. Step 1: the relative L2 error of the gradient, and the relative difference of
// the loss. Later steps: the largest difference of a loss, and the relative L2 error of the weights
// after the last compared step. All steps: the margin of a choice.
struct VerifyBounds {
    double gradient, first_loss, later_loss, weights, choice;
    double drifts;  // a measured bound is this many times the drift of correct runs
    // The largest measured bounds of the gradient and of a later choice.
    double gradient_limit, choice_limit;
    DType rounding;                  // weights are displaced by its unit to measure drift
    std::string wider_because = {};  // a reason, if they are wider than those of the dtype
};
VerifyBounds verify_bounds(DType dtype);

// The choices of a run that verify compares, and of the plain training.
class Choices {
public:
    virtual ~Choices() = default;
    // All ranks call these two. watch(): the run's first `steps` steps, which now begin, are
    // compared. follow(): these steps have ended, and from now on the plain training makes their
    // choices; returns whether it would make other choices by itself.
    virtual void watch(int64_t steps) = 0;
    virtual bool follow(int64_t steps) = 0;

    // Rank 0's counts about one step of the last plain training.
    struct Flips {
        int64_t choices = 0, flipped = 0;  // flipped: the run chose differently
        double margin = 0;                 // the largest one of the flipped choices
        double drift = 0;  // the compared numbers', as a share of their size; see keep()
    };
    virtual std::vector<Flips> flips() const = 0;
    // From now on drifts are measured from this plain training.
    virtual void keep() = 0;
};

class Verifier {
public:
    // Rank 0 immediately trains the plain way, from the run's start, while the other ranks sleep,
    // and sends them the result. Step s takes `batch_sizes[s]` sequences, `micro_batch` at a time
    // (0: all at once; set it if results depend on which sequences are together, like the balance
    // or capacity of experts). `change` adds to the plain model's parts what the run computes
    // besides (experts), and `choices` are the choices of these parts. `bounds`: by default those
    // of options.dtype. Keeps references to the loader and `choices`.
    Verifier(const Options& options, const LlamaConfig& config, const DataLoader& loader,
             std::vector<int64_t> batch_sizes,
             const std::function<void(ModuleFactories&)>& change = {}, int64_t micro_batch = 0,
             Choices* choices = nullptr, const std::optional<VerifyBounds>& bounds = {});
    // Uses the chapter's own reference, which `make` creates on rank 0.
    using MakeReference = std::function<std::unique_ptr<Reference>()>;
    Verifier(const MakeReference& make, int64_t steps, const VerifyBounds& bounds);

    // Compare the tested run. `step` counts from 0; each rank compares what it holds, whole
    // parameters or parts of them. All ranks call them.
    void gradient(const std::vector<TensorPart>& grads);  // the first step's, before clipping
    void after_step(int64_t step, double loss, const std::vector<TensorPart>& values);

    // Prints a line for each comparison and adds it to the report. Returns false if a bound was
    // missed, or if verify cannot tell. Rank 0 trains twice more if a measured bound must decide.
    // All ranks call it and get the same result.
    bool finish(Report& report);

private:
    struct Drift {
        double gradient = 0, loss = 0, weights = 0, first_choice = 0, later_choice = 0;
    };
    void make_reference(const MakeReference& make);
    void train_plainly(size_t steps);
    void follow_choices(size_t steps);
    Drift measure_drift();
    void report_flips(Report& report) const;
    Drift drift_of(const Reference::Result& other, uint64_t displacement) const;

    VerifyBounds bounds_;
    size_t steps_;  // to compare
    Choices* choices_;
    std::unique_ptr<Reference> plain_;  // on rank 0 only
    Reference::Result reference_;
    GradientGroups by_group_;            // of the run's first gradient
    std::vector<double> losses_;         // of the run
    std::vector<Choices::Flips> flips_;  // by step, of the plain training that follows
    // ||w_6 - w_0|| / ||w_6|| of the plain training; and of this run, if it is needed.
    double moved_ = 0, run_moved_ = -1;
    // -1: not compared yet
    double gradient_error_ = -1, first_loss_error_ = -1, later_loss_error_ = -1, loss_error_ = -1,
           weights_error_ = -1;
};

}  // namespace ultrascale
