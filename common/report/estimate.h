// Memory and arithmetic by formula: what every technique's prediction begins with, and what
// --estimate prints without running anything.
#pragma once

#include "activations.h"
#include "core/memory.h"
#include "prediction.h"

namespace ultrascale {

// A micro-batch of a model, as the options ask for it: of `seq` tokens a sequence, whatever part of
// them a rank has.
struct StepShape {
    LlamaConfig config;
    ModelOptions model;
    DType grad_dtype = DType::fp32;
    int64_t micro_batch, seq;
};

// Of a device that holds the whole model and computes with all tokens: what techniques start from.
LocalSizes local_sizes(const StepShape& shape);

// Bytes of optimizer states for each parameter: two moments, and the master copy of bf16 weights.
inline int64_t optimizer_bytes(DType dtype) { return dtype == DType::fp32 ? 8 : 12; }

// Each adds its part to a prediction.
// So many parameters on this rank, and their gradients and optimizer states.
void add_parameters(Prediction& prediction, int64_t parameters, const StepShape& shape);
void add_activations(Prediction& prediction, const LocalSizes& sizes);
// The plain sum of gradients: after the backward, an all-reduce for each of these parameters over
// `ranks`. Nothing for one rank.
void add_gradient_sums(Prediction& prediction, const ParameterList& parameters, const Group& ranks,
                       DType grad_dtype);
// FLOPs of a token; `active`: the parameters of the whole model that a token meets.
void add_flops(Prediction& prediction, const StepShape& shape, int64_t active);

// One device that holds a whole model of so many parameters. Equal, to the byte, to what memory.h
// counts (tests/chapters compares them).
Prediction predict_one_device(const StepShape& shape, int64_t parameters);
// Its memory, from the configuration alone.
MemoryEstimate estimate_memory(const StepShape& shape);

// Throws UserError if the estimate is above `limit` bytes.
void check_fits(const StepShape& shape, int64_t limit);
// Likewise for a technique's own estimate; `advice` ends the error.
void check_fits(const MemoryEstimate& estimate, int64_t limit, const std::string& advice);
// Where ranks hold different amounts: all of them call it, and all throw if one's own estimate is
// above its limit.
void check_fits_everywhere(const MemoryEstimate& own, int64_t limit, const std::string& advice);
// "these options would: --micro-batch 4, or --recompute full": the end of an out-of-memory error.
std::string what_would_fit(const StepShape& shape, int64_t limit);

// The playbook's formula for a GPT-like model in mixed precision (after Korthikanti et al. 2022),
// for comparison: L s b h (34 + 5 H s / h) bytes; selective recomputation drops the second term,
// full leaves 2 L s b h.
double book_activations(const StepShape& shape);
// The playbook's bytes per parameter: fp32 16; bf16 with fp32 master weights 16; with fp32
// gradients besides 20.
int64_t book_bytes_per_parameter(const StepShape& shape);

// FLOPs per token of one training step: 6 N + 12 L (H D) s as the field counts them (nothing taken
// off for causality), with N the parameters that a token meets and s the whole sequence, and what
// recomputation adds to it.
double model_flops_per_token(const LlamaConfig& config, int64_t active_parameters, int64_t seq);
double recomputed_flops_per_token(const StepShape& shape, int64_t active_parameters);

}  // namespace ultrascale
