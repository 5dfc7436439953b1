// A step's sizes, which follow from the shared options and the model's config.
#pragma once

#include "data.h"
#include "lab/options/cli.h"
#include "model/step_shape.h"

namespace ultrascale {

// A rank's share of a step. Throws UserError if the options do not fit the model.
StepShape step_shape(const Options& options, const LlamaConfig& config);
DataOptions data_options(const Options& options, const StepShape& shape,
                         std::vector<SamplesCut> cuts = {});
// The number of sequences in a step; throws UserError above 10^7. sequences_of_step() counts those
// of all `replicas` together.
int64_t checked_sequences(double sequences);
int64_t sequences_of_step(const Options& options, int64_t replicas);

}  // namespace ultrascale
