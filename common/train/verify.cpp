#include "verify.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "comm/comm.h"
#include "core/error.h"
#include "core/threads.h"
#include "core/trace.h"
#include "whole_values.h"

namespace ultrascale {

VerifyBounds verify_bounds(DType dtype) {
    // Correct runs were up to 2 drifts away from the reference in either dtype. With fp32's 7
    // digits a drift is so small that 32 times as much hides little; with bf16's 2 or 3 digits it
    // would hide everything.
    if (dtype == DType::fp32) return {1e-5, 1e-5, 1e-5, 1e-4, 32, 1e-3};
    return {3e-2, 3e-3, 3e-2, 1e-2, 8, 0.25};
}

namespace {

constexpr double quarter = 0.25;  // of the distance that the weights moved: no larger error passes

// While rank 0 trains for comparison, it uses all cores, and its memory and operations are not
// counted.
struct Aside {
    AllCores cores;
    MemoryAside memory;
    const bool recorded = trace_recording();
    Aside() { trace_record(false); }
    ~Aside() { trace_record(recorded); }
};

// The larger one; NaN counts as larger than any number.
double larger(double a, double b) { return std::isnan(a) || a > b ? a : b; }

// False for NaN and for -1, not compared.
bool within(double error, double bound) { return error >= 0 && error <= bound; }

}  // namespace

Verifier::Verifier(const Options& options, const LlamaConfig& config, const DataLoader& loader,
                   std::vector<int64_t> batch_sizes, const std::function<void(Parts&)>& change,
                   int64_t micro_batch)
    : bounds_(verify_bounds(options.dtype)) {
    batch_sizes.resize(std::min<size_t>(batch_sizes.size(), verified_steps));
    const auto plain = [&] {
        return std::make_unique<PlainTraining>(options, config, loader, batch_sizes, change,
                                               micro_batch);
    };
    train_reference(plain, int64_t(batch_sizes.size()));
}

Verifier::Verifier(const MakeReference& make, int64_t steps, const VerifyBounds& bounds)
    : bounds_(bounds) {
    train_reference(make, steps);
}

void Verifier::train_reference(const MakeReference& make, int64_t steps) {
    print(fmt::format("  verify  rank 0 first trains {} the plain way, for comparison ...",
                      format_count(steps, "step")));
    std::fflush(stdout);
    const Communicator& world = Communicator::world();
    if (world.rank() == 0) {
        const Aside aside;
        plain_ = make();
        reference_ = plain_->train(0);
        double way = 0;
        for (const auto& [name, after] : reference_.weights) {
            const std::vector<float> before = plain_->start_of(name, 0);
            for (size_t i = 0; i < after.size(); ++i) way += square(double(after[i]) - before[i]);
        }
        moved_ = std::sqrt(way) / norm(reference_.weights);
    }
    world.wait_asleep_for(0);
    if (world.size() > 1) tell_all_ranks();
}

void Verifier::tell_all_ranks() {
    const Communicator& world = Communicator::world();
    std::vector<double> numbers = reference_.losses;
    numbers.push_back(moved_);
    numbers = from_bytes<double>(world.broadcast_string(bytes_of(numbers), 0));
    moved_ = numbers.back();
    numbers.pop_back();
    reference_.losses = numbers;
    tell(reference_.gradient);
    tell(reference_.weights);
}

void Verifier::gradient(const std::vector<TensorPart>& grads) {
    gradient_error_ = distance(grads, reference_.gradient) / norm(reference_.gradient);
    if (!plain_) reference_.gradient.clear();
}

void Verifier::after_step(int64_t step, double loss, const std::vector<TensorPart>& values) {
    if (step >= int64_t(reference_.losses.size())) return;
    const double want = reference_.losses[size_t(step)], difference = std::abs(loss - want);
    if (step == 0)  // relative to at least 1: a smaller loss has logits that round as much
        first_loss_error_ = difference / std::max(1.0, std::abs(want));
    else
        later_loss_error_ = larger(difference, later_loss_error_);
    loss_error_ = larger(difference, loss_error_);
    if (step + 1 < int64_t(reference_.losses.size())) return;
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

// Rank 0 measures how far apart two correct runs may end, and sends the others the result.
Verifier::Drift Verifier::measure_drift() {
    print(
        "  rank 0 measures how far plain runs drift apart whose weights start a rounding unit "
        "apart ...");
    std::fflush(stdout);
    Drift largest;
    const Communicator& world = Communicator::world();
    if (world.rank() == 0) {
        const Aside aside;
        try {
            for (uint64_t displacement : {1, 2}) {
                const Drift drift = drift_of(plain_->train(displacement), displacement);
                largest = {std::max(largest.gradient, drift.gradient),
                           std::max(largest.loss, drift.loss),
                           std::max(largest.weights, drift.weights)};
            }
        } catch (const OutOfMemory& error) {  // must not abort a training that has come this far
            print(fmt::format("  not measured: {}", error.what()));
            largest.gradient = largest.loss = largest.weights =
                std::numeric_limits<double>::infinity();
        }
    }
    world.wait_asleep_for(0);
    const std::vector<double> told = from_bytes<double>(world.broadcast_string(
        bytes_of<double>({largest.gradient, largest.loss, largest.weights}), 0));
    return {told[0], told[1], told[2]};
}

// The drift of the first gradient, the later losses, and the weights' displacements from their
// start.
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
    return drift;
}

bool Verifier::finish(Report& report) {
    // In a wrong run the losses may differ between ranks: the largest error counts.
    double* const errors[] = {&first_loss_error_, &later_loss_error_, &loss_error_};
    const std::string mine = bytes_of<double>({*errors[0], *errors[1], *errors[2]});
    for (const std::string& of_rank : Communicator::world().gather_strings(mine))
        for (size_t i = 0; i < 3; ++i)
            *errors[i] = larger(from_bytes<double>(of_rank)[i], *errors[i]);
    const size_t steps = reference_.losses.size();
    print(fmt::format(
        "\nverify: {} against one plain device (whole batch, T x T attention, no recomputation)",
        steps == 1 ? "the first step" : fmt::format("the first {} steps", steps)));
    const double weights_limit = quarter * moved_,
                 weights_floor = std::min(bounds_.weights, weights_limit);
    // No drift excuses larger errors in step 1.
    const bool may_be_drift = within(gradient_error_, bounds_.gradient_limit) &&
                              within(first_loss_error_, bounds_.first_loss);
    const bool fits_floors = within(gradient_error_, bounds_.gradient) &&
                             (steps == 1 || within(later_loss_error_, bounds_.later_loss)) &&
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
    if (steps > 1)
        line("loss", "loss_later", fmt::format("steps 2 to {}, largest difference", steps),
             later_loss_error_, bounds_.later_loss, drift.loss);
    line("weights", "weights", fmt::format("after step {}, relative L2 error", steps),
         weights_error_, weights_floor, drift.weights, weights_limit);
    report.value("verify", "loss", loss_error_);  // of all steps
    report.text("verify", "result", ok ? "ok" : missed ? "missed" : "cannot tell");
    if (!ok && !missed)
        print(
            "  verify cannot tell: correct runs of this model drift as far apart; this does not "
            "count as a pass");
    return ok;
}

}  // namespace ultrascale
