#include "verify.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "comm/comm.h"
#include "core/error.h"

namespace ultrascale {

VerifyBounds verify_bounds(DType dtype) {
    // Correct runs were up to 2 drifts away from the reference in either dtype. With fp32's 7
    // digits a drift is so small that 32 times as much hides little; with bf16's 2 or 3 digits it
    // would hide everything.
    if (dtype == DType::fp32) return {1e-5, 1e-5, 1e-5, 1e-4, 2e-5, 32, 1e-3, 1e-2, dtype};
    return {3e-2, 3e-3, 3e-2, 1e-2, 3e-2, 8, 0.25, 0.25, dtype};
}

namespace {

constexpr double quarter = 0.25;  // of the weights' movement: no larger error passes

// The larger one; NaN counts as larger than any number.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

// False for NaN and for -1, not compared.
bool within(double error, double bound) { return error >= 0 && error <= bound; }

}  // namespace

Verifier::Verifier(const Options& options, const LlamaConfig& config, const DataLoader& loader,
                   std::vector<int64_t> batch_sizes,
                   const std::function<void(ModuleFactories&)>& change, int64_t micro_batch,
                   Choices* choices, const std::optional<VerifyBounds>& bounds)
    : bounds_(bounds.value_or(verify_bounds(options.dtype))),
      steps_(std::min<size_t>(batch_sizes.size(), verified_steps)),
      choices_(choices) {
    batch_sizes.resize(steps_);
    const auto plain = [&] {
        return std::make_unique<PlainTraining>(options, config, loader, batch_sizes, change,
                                               micro_batch, bounds_.rounding);
    };
    make_reference(plain);
    if (choices_) choices_->watch(int64_t(steps_));
}

Verifier::Verifier(const MakeReference& make, int64_t steps, const VerifyBounds& bounds)
    : bounds_(bounds), steps_(size_t(steps)), choices_(nullptr) {
    make_reference(make);
}

void Verifier::make_reference(const MakeReference& make) {
    print(fmt::format("  verify  rank 0 first trains {} the plain way, for comparison ...",
                      format_count(int64_t(steps_), "step")));
    std::fflush(stdout);
    if (Communicator::world().rank() == 0) plain_ = make();
    train_plainly(steps_);
}

// Rank 0 trains, while the other ranks sleep, and tells them the result.
void Verifier::train_plainly(size_t steps) {
    const Communicator& world = Communicator::world();
    if (plain_) {
        reference_ = plain_->train(0, steps);
        if (choices_) flips_ = choices_->flips();
        double way = 0;
        for (const auto& [name, after] : reference_.weights) {
            const std::vector<float> before = plain_->start_of(name, 0);
            for (size_t i = 0; i < after.size(); ++i) way += square(double(after[i]) - before[i]);
        }
        moved_ = std::sqrt(way) / norm(reference_.weights);
    }
    world.wait_asleep_for(0);
    if (world.size() == 1) return;
    reference_.losses = told(reference_.losses);
    flips_ = told(flips_);
    moved_ = told<double>({moved_})[0];
    tell(reference_.gradient);
    tell(reference_.weights);
}

// When the run's first `steps` steps have made their choices: if these differ from the plain
// training's, the plain training follows them.
void Verifier::follow_choices(size_t steps) {
    if (!choices_) return;
    const bool differ = choices_->follow(int64_t(steps));
    if (!differ && reference_.losses.size() >= steps) return;
    print("  rank 0 repeats the plain training with the choices that this run made ...");
    std::fflush(stdout);
    train_plainly(steps);
}

void Verifier::gradient(const std::vector<TensorPart>& grads) {
    follow_choices(1);
    const std::vector<Comparison> tensors = compare(grads, reference_.gradient);
    gradient_error_ = distance(tensors) / norm(reference_.gradient);
    by_group_ = {reference_.gradient, tensors};
    if (!plain_) reference_.gradient.clear();
}

void Verifier::after_step(int64_t step, double loss, const std::vector<TensorPart>& values) {
    if (step >= int64_t(steps_)) return;
    losses_.push_back(loss);
    if (losses_.size() < steps_) return;
    follow_choices(steps_);
    for (size_t s = 0; s < steps_; ++s) {
        const double want = reference_.losses[s], difference = std::abs(losses_[s] - want);
        if (s == 0)  // relative to at least 1: a smaller loss has logits that round as much
            first_loss_error_ = difference / std::max(1.0, std::abs(want));
        else
            later_loss_error_ = larger(difference, later_loss_error_);
        loss_error_ = larger(difference, loss_error_);
    }
    const double size = norm(reference_.weights);
    weights_error_ = distance(values, reference_.weights) / size;
    if (weights_error_ <= quarter * moved_ || !within(gradient_error_, bounds_.gradient_limit))
        return;
    // The error exceeds every bound. Whether the run has trained at all decides between MISSED and
    // CANNOT TELL.
    Reference::Values start;
    if (plain_)
        for (const auto& [name, tensor] : reference_.weights)
            start[name] = plain_->start_of(name, 0);
    tell(start);
    run_moved_ = distance(values, start) / size;
}

// Rank 0 measures how far apart two correct runs may end, and tells the others.
Verifier::Drift Verifier::measure_drift() {
    print(
        "  rank 0 measures how far plain runs drift apart whose weights start a rounding unit "
        "apart ...");
    std::fflush(stdout);
    Drift largest;
    if (plain_) {
        if (choices_) choices_->keep();
        try {
            for (uint64_t displacement : {1, 2}) {
                const Drift drift = drift_of(plain_->train(displacement, steps_), displacement);
                largest = {std::max(largest.gradient, drift.gradient),
                           std::max(largest.loss, drift.loss),
                           std::max(largest.weights, drift.weights),
                           std::max(largest.first_choice, drift.first_choice),
                           std::max(largest.later_choice, drift.later_choice)};
            }
        } catch (const OutOfMemory& error) {  // must not abort a training that has come this far
            print(fmt::format("  not measured: {}", error.what()));
            constexpr double infinity = std::numeric_limits<double>::infinity();
            largest = {infinity, infinity, infinity, infinity, infinity};
        }
    }
    Communicator::world().wait_asleep_for(0);
    return told<Drift>({largest})[0];
}

// The drift of the first gradient, of the later losses, and of the weights' displacements from
// their start.
Verifier::Drift Verifier::drift_of(const Reference::Result& other, uint64_t displacement) const {
    Drift drift{};
    for (size_t step = 1; step < other.losses.size(); ++step)
        drift.loss = std::max(drift.loss, std::abs(other.losses[step] - reference_.losses[step]));
    double apart = 0;
    for (const auto& [name, want] : reference_.gradient) {
        const std::vector<float>& got = other.gradient.at(name);
        for (size_t i = 0; i < want.size(); ++i) apart += square(double(got[i]) - want[i]);
    }
    drift.gradient = std::sqrt(apart) / norm(reference_.gradient);
    apart = 0;
    for (const auto& [name, after] : reference_.weights) {
        const std::vector<float> before = plain_->start_of(name, 0),
                                 other_before = plain_->start_of(name, displacement);
        const std::vector<float>& other_after = other.weights.at(name);
        for (size_t i = 0; i < after.size(); ++i) {
            const double way = double(after[i]) - before[i];
            apart += square(double(other_after[i]) - other_before[i] - way);
        }
    }
    drift.weights = std::sqrt(apart) / norm(reference_.weights);
    if (!choices_) return drift;
    const std::vector<Choices::Flips> flips = choices_->flips();
    int64_t flipped = 0;
    for (size_t step = 0; step < flips.size(); ++step) {
        double& widest = step == 0 ? drift.first_choice : drift.later_choice;
        widest = std::max(widest, flips[step].drift);
        flipped += flips[step].flipped;
    }
    print(fmt::format("  by itself, such a run would have made {} otherwise",
                      format_count(flipped, "choice")));
    return drift;
}

bool Verifier::finish(Report& report) {
    // In a wrong run the losses may differ between ranks: the largest error counts.
    double* const errors[] = {&first_loss_error_, &later_loss_error_, &loss_error_};
    const std::string mine = bytes_of<double>({*errors[0], *errors[1], *errors[2]});
    for (const std::string& rank_errors : Communicator::world().gather_strings(mine))
        for (size_t i = 0; i < 3; ++i)
            *errors[i] = larger(from_bytes<double>(rank_errors)[i], *errors[i]);
    print(fmt::format(
        "\nverify: {} against one plain device (whole batch, T x T attention, no recomputation)",
        steps_ == 1 ? "the first step" : fmt::format("the first {} steps", steps_)));
    if (!bounds_.wider_because.empty()) print("  with wider bounds: " + bounds_.wider_because);
    const double weights_limit = quarter * moved_,
                 weights_floor = std::min(bounds_.weights, weights_limit);
    Choices::Flips first, later;  // choices
    for (const Choices::Flips& step : flips_) {
        Choices::Flips& sum = &step == flips_.data() ? first : later;
        sum.choices += step.choices, sum.flipped += step.flipped;
        sum.margin = std::max(sum.margin, step.margin);
    }
    // No drift excuses larger errors in step 1.
    const bool may_be_drift = within(gradient_error_, bounds_.gradient_limit) &&
                              within(first_loss_error_, bounds_.first_loss) &&
                              within(first.margin, bounds_.gradient_limit);
    const bool fits_floors = within(gradient_error_, bounds_.gradient) &&
                             within(std::max(first.margin, later.margin), bounds_.choice) &&
                             (steps_ == 1 || within(later_loss_error_, bounds_.later_loss)) &&
                             within(weights_error_, weights_floor);
    Drift drift;
    if (may_be_drift && !fits_floors) {
        drift = measure_drift();
        report.value("verify", "drift_gradient", drift.gradient);
        report.value("verify", "drift_loss", drift.loss);
        report.value("verify", "drift_weights", drift.weights);
    }

    bool ok = true, missed = false;
    const auto line = [&](const char* name, const std::string& key, const std::string& what,
                          double error, double floor, double drift = 0,
                          double limit = std::numeric_limits<double>::infinity()) {
        const double allowed = bounds_.drifts * drift;  // infinite: could not be measured
        const bool by_floor = within(error, floor);
        const double bound = by_floor ? floor : std::max(floor, std::min(allowed, limit));
        const bool fits = by_floor || (within(error, bound) && std::isfinite(allowed));
        // If correct runs drift further than the bound's limit, the bound says nothing. But
        // rounding is no excuse for a run whose weights stayed near their start.
        const bool powerless = allowed > limit || std::isinf(allowed);
        const bool untold =
            !fits && error >= 0 && powerless && (error <= limit || run_moved_ >= moved_ / 2);
        const std::string kind = bound == floor && floor != weights_limit ? "fixed"
                                 : bound == limit                         ? "limit"
                                                                          : "measured";
        print(fmt::format("  {:<9} {:<34} {:>9.2e} <= {:.1e}  {:<9}  {}", name, what, error, bound,
                          kind,
                          fits     ? "ok"
                          : untold ? "CANNOT TELL"
                                   : "MISSED"));
        ok = ok && fits, missed = missed || !(fits || untold);
        report.value("verify", key, error);
        report.value("verify", key + "_bound", bound);
        report.text("verify", key + "_bound_is", kind);
    };
    line("gradient", "gradient", "step 1, relative L2 error", gradient_error_, bounds_.gradient,
         drift.gradient, bounds_.gradient_limit);
    line("loss", "loss_step_1", "step 1, relative difference", first_loss_error_,
         bounds_.first_loss);
    if (steps_ > 1)
        line("loss", "loss_later", fmt::format("steps 2 to {}, largest difference", steps_),
             later_loss_error_, bounds_.later_loss, drift.loss);
    line("weights", "weights", fmt::format("after step {}, relative L2 error", steps_),
         weights_error_, weights_floor, drift.weights, weights_limit);
    if (choices_) {
        const auto flips = [](const std::string& when, const Choices::Flips& of) {
            return fmt::format("{}, {} of {} flip", when, of.flipped, of.choices);
        };
        line("choices", "margin_step_1", flips("step 1", first), first.margin, bounds_.choice,
             drift.first_choice, bounds_.gradient_limit);
        if (steps_ > 1)
            line("choices", "margin_later", flips(fmt::format("steps 2 to {}", steps_), later),
                 later.margin, bounds_.choice, drift.later_choice, bounds_.choice_limit);
        report_flips(report);
    }
    if (report.full() || !within(gradient_error_, bounds_.gradient)) by_group_.print(report);
    report.value("verify", "loss", loss_error_);  // of all steps
    report.text("verify", "result", ok ? "ok" : missed ? "missed" : "cannot tell");
    if (!ok && !missed)
        print(
            "  verify cannot tell: correct runs of this model drift as far apart; this does not "
            "count as a pass");
    return ok;
}

void Verifier::report_flips(Report& report) const {
    int64_t choices = 0, flipped = 0;
    std::string by_step;
    for (size_t step = 0; step < flips_.size(); ++step) {
        choices += flips_[step].choices, flipped += flips_[step].flipped;
        if (flips_[step].flipped > 0)
            by_step += fmt::format("{}{}: {}", by_step.empty() ? "" : ", ", step + 1,
                                   flips_[step].flipped);
    }
    if (flipped > 0) print(fmt::format("  flips by step: {}", by_step));
    report.value("verify", "choices", double(choices));
    report.value("verify", "choices_flipped", double(flipped));
}

}  // namespace ultrascale
