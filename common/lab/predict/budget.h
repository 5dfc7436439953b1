// --memory-budget: chooses which layers recompute, so that a step fits.
#pragma once

#include <functional>

#include "model/step_shape.h"
#include "prediction.h"

namespace ultrascale {

// Sets shape.model.recompute to the setting, of all "full:F,selective:S", that computes the fewest
// FLOPs again and with which no rank is predicted to hold more than `gib` GiB, and prints it.
// `predict`: what this rank holds. All ranks call it. Throws UserError, naming the smallest peak,
// if nothing fits.
void fit_into_budget(StepShape& shape, double gib,
                     const std::function<MemoryEstimate(const StepShape&)>& predict);

}  // namespace ultrascale
