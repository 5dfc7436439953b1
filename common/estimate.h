// Memory and arithmetic by formula, from the configuration alone: what the report prints beside the measured figures and
// --estimate prints without running anything.
#pragma once

#include <algorithm>

#include "llama.h"
#include "memory.h"

namespace ultrascale {

// One device's share of a step.
struct StepShape {
    LlamaConfig config;
    ModelOptions model;
    DType grad_dtype = DType::fp32;
    int64_t micro_batch, seq;
};

// What one token of one layer keeps for backward, in bytes; e is the activation's bytes per element.
struct SavedPerToken {
    int64_t norms;      // inputs of both norms, their outputs (the linears' inputs) and their rstd:  4 h e + 2 * 4
    int64_t attention;  // q, k, v, o:  (2 H D + 2 K D) e;  and  flash: the log-sum-exp, 4 H;  naive: the row of probabilities, H T e
    int64_t mlp;        // gate and up:  2 F e  (the input of down is made again from them)
    int64_t total() const { return norms + attention + mlp; }
};
SavedPerToken saved_per_token(const StepShape& shape);

struct MemoryEstimate {
    int64_t parameters, gradients, optimizer;  // bytes that stay
    int64_t peak_activations;                  // the most that forward and backward hold at once
    int64_t peak_communication = 0;            // buffers of a technique that gathers what it does not keep
    int64_t host = 0;                          // on the host, beside them
    bool one_after_the_other = false;          // the buffers exist only where no activations do: their peaks do not add up
    int64_t total() const {                    // on the device; saturating, as each part is. At most: the peaks may not meet
        const double activations = double(peak_activations), buffers = double(peak_communication);
        return int64_t(std::min(double(parameters) + double(gradients) + double(optimizer) +
                                    (one_after_the_other ? std::max(activations, buffers) : activations + buffers),
                                9e18));
    }
};
// Bytes of optimizer states for each parameter: two moments, and the master copy of bf16 weights.
inline int64_t optimizer_bytes(DType dtype) { return dtype == DType::fp32 ? 8 : 12; }
// A moment of forward or backward, and what activations consist of then.
struct ActivationMoment {
    std::string when;
    std::vector<std::pair<std::string, double>> terms;  // what, bytes
    double bytes() const {
        double sum = 0;
        for (const auto& [what, bytes] : terms) sum += bytes;
        return sum;
    }
};
ActivationMoment activation_peak(const StepShape& shape);  // the moment at which they are the most

// Equal, to the byte, to what memory.h counts on one device (tests/chapters compares them).
MemoryEstimate estimate_memory(const StepShape& shape);

// Throws UserError if the estimate is above `limit` bytes.
void check_fits(const StepShape& shape, int64_t limit);
// Likewise for a technique's own estimate; `advice` ends the error.
void check_fits(const MemoryEstimate& estimate, int64_t limit, const std::string& advice);
// "these options would: --micro-batch 4, or --recompute full": the end of an out-of-memory error.
std::string what_would_fit(const StepShape& shape, int64_t limit);

// The playbook's formula for a GPT-like model in mixed precision (after Korthikanti et al. 2022), for comparison:
//   L s b h (34 + 5 H s / h) bytes; selective recomputation drops the second term, full leaves 2 L s b h.
double book_activations(const StepShape& shape);
// The playbook's bytes per parameter: fp32 16; bf16 with fp32 master weights 16; with fp32 gradients besides 20.
int64_t book_bytes_per_parameter(const StepShape& shape);

// FLOPs per token of one training step: 6 N + 12 L (H D) s as the field counts them (nothing taken off for causality), and
// what recomputation adds to it.
double model_flops_per_token(const LlamaConfig& config, int64_t seq);
double recomputed_flops_per_token(const StepShape& shape);

}  // namespace ultrascale
