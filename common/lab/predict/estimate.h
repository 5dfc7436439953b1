// Memory and arithmetic by formula. Every technique's prediction starts with them, and --estimate
// prints them without running anything.
#pragma once

#include <functional>

#include "activations.h"
#include "core/memory.h"
#include "model/step_shape.h"
#include "prediction.h"

namespace ultrascale {

// The sizes on a device that holds the whole model and computes all tokens, from which techniques
// start.
LocalSizes local_sizes(const StepShape& shape);

// Bytes of optimizer states per parameter: two moments, and the master copy of bf16 weights.
inline int64_t optimizer_bytes(DType dtype) { return dtype == DType::fp32 ? 8 : 12; }
// Muon has one moment: so many bytes less for each number of a matrix that it updates.
inline constexpr int64_t muon_saves = 4;
// Their numbers in a model without experts.
int64_t muon_numel(const LlamaConfig& config);

// Each of these functions adds its part to a prediction. add_parameters: this rank's `parameters`,
// with their gradients and optimizer states; if shape.muon, `matrices` of them are updated by Muon.
void add_parameters(Prediction& prediction, int64_t parameters, const StepShape& shape,
                    int64_t matrices = 0);
void add_activations(Prediction& prediction, const LocalSizes& sizes);
// Adds the plain sum of gradients: after the backward, one all-reduce over `ranks` for each
// parameter. Adds nothing for one rank.
void add_gradient_sums(Prediction& prediction, const ParameterList& parameters, const Group& ranks,
                       DType grad_dtype);
// FLOPs per token. `active`: the number of the whole model's parameters that a token uses.
void add_flops(Prediction& prediction, const StepShape& shape, int64_t active);

// The prediction for one device that holds a whole model with this many parameters. It equals the
// bytes that memory.h counts (tests/chapters compares them).
Prediction predict_one_device(const StepShape& shape, int64_t parameters);
// The memory of this device, from the configuration alone.
MemoryEstimate estimate_memory(const StepShape& shape);

// Returns which options would need less: the end of an out-of-memory error. As that may take a
// search, it is called only if something does not fit, and then on all ranks that check.
using Advice = std::function<std::string()>;
// Throws UserError if the estimate is above `limit` bytes.
void check_fits(const MemoryEstimate& estimate, int64_t limit, const Advice& advice);
// For ranks that hold different amounts: all ranks call it, and all throw if any rank's estimate
// exceeds its limit.
void check_fits_everywhere(const MemoryEstimate& own, int64_t limit, const Advice& advice);
// Returns the advice for one device: "these options would: --micro-batch 4, or --recompute full".
std::string what_would_fit(const StepShape& shape, int64_t limit);

// The playbook's formula for a GPT-like model in mixed precision (after Korthikanti et al. 2022),
// for comparison: L s b h (34 + 5 H s / h) bytes; selective recomputation drops the second term,
// full leaves 2 L s b h.
double book_activations(const StepShape& shape);
// The playbook's bytes per parameter: fp32 16; bf16 with fp32 master weights 16; also with fp32
// gradients 20.
int64_t book_bytes_per_parameter(const StepShape& shape);

// FLOPs per token of a training step: 6 N + 12 L (H D) s, the usual count (nothing is subtracted
// for causality), where N is the number of parameters that a token uses and s the whole sequence;
// and the additional FLOPs of recomputation.
double model_flops_per_token(const LlamaConfig& config, int64_t active_parameters, int64_t seq);
double recomputed_flops_per_token(const StepShape& shape, int64_t active_parameters);
// The share of a sequence that a token sees on average: half, with a causal mask, less with a
// window, more with a prefix (attended_pairs).
double share_seen(const LlamaConfig& config, int64_t seq);

}  // namespace ultrascale
