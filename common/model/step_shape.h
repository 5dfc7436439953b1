// What a rank computes in a step, as the options give it.
#pragma once

#include "llama.h"

namespace ultrascale {

// A model and its micro-batch; `seq` is the whole sequence, even if a rank has only a part of it.
struct StepShape {
    LlamaConfig config;
    ModelOptions model;
    DType grad_dtype = DType::fp32;
    int64_t micro_batch, seq;
    bool muon = false;  // Muon updates the layers' matrices
};

}  // namespace ultrascale
