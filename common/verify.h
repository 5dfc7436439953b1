// --verify: the same training on one device the plain way, and how far this run is from it.
//
// Plain means: the whole global batch in one forward and backward, attention with the T x T matrix, no recomputation, the
// loss in one piece, no parallelism. Only the first 6 steps are compared: later ones drift apart by chaos, not by error.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cli.h"
#include "data.h"
#include "report.h"

namespace ultrascale {

inline constexpr int64_t verified_steps = 6;

// How far two runs may be apart: relative L2 error of the first gradient, largest difference of a loss, relative L2 error
// of the weights after the last compared step.
struct VerifyBounds {
    double gradient, loss, weights;
};
VerifyBounds verify_bounds(DType dtype);

class Verifier {
public:
    // Rank 0 runs the plain reference at once, from where the run starts, and tells the others; step s takes `batch_sizes[s]`
    // sequences. `change` adds to the plain model's parts what the run computes besides (dropout).
    Verifier(const Options& options, const LlamaConfig& config, const DataLoader& loader, std::vector<int64_t> batch_sizes,
             const std::function<void(Parts&)>& change = {});

    // What the run under test did. `step` counts from 0; each rank compares what it holds, whole parameters or parts of them.
    void gradient(int64_t step, const std::vector<TensorPart>& grads);  // before clipping
    void after_step(int64_t step, double loss, const std::vector<TensorPart>& values);

    // Prints three lines and adds them to the report; false if a bound was missed.
    bool finish(Report& report) const;

private:
    using Values = std::map<std::string, std::vector<float>>;  // whole tensors by name
    void run_reference(const Options& options, const LlamaConfig& config, const DataLoader& loader, const std::vector<int64_t>& batch_sizes,
                       const std::function<void(Parts&)>& change);
    void tell_all_ranks();
    double relative_error(const std::vector<TensorPart>& parts, const Values& reference) const;

    VerifyBounds bounds_;
    std::vector<double> reference_losses_;
    Values reference_gradient_, reference_weights_;
    double gradient_error_ = -1, loss_error_ = -1, weights_error_ = -1;  // -1: not compared yet
};

}  // namespace ultrascale
