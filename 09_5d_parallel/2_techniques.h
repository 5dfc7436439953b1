// The techniques that a run combines, each in its chapter's own terms.
#pragma once

#include "02_zero/zero_options.h"
#include "03_tensor_parallel/3_attention_heads.h"
#include "03_tensor_parallel/tensor_options.h"
#include "04_context_parallel/context_options.h"
#include "05_pipeline/2_schedules/schedules.h"
#include "06_expert_parallel/expert_options.h"
#include "08_mixed_precision/precision_options.h"
#include "1_axes.h"
#include "model/step_shape.h"

namespace ultrascale::five_d {

struct Techniques {
    Axes axes;
    ZeroOptions zero{.stage = 0};
    double bucket_mb = 25;  // for --zero 0
    TensorOptions tensor;
    ContextOptions context;
    ExpertOptions experts{.aux = Aux::megatron};
    PrecisionOptions precision{.recipe = *find_recipe("fp32")};
    std::string schedule = "1f1b";
    ScheduleOptions sizes;
    std::string split = "auto";

    Schedule make_schedule(int micro_batches) const {
        const Schedule made = pipeline::make_schedule(schedule, axes.pp, micro_batches, sizes);
        return experts.interleaves() ? made : apart(made);
    }
};

// The shape, with only the heads that a rank of tp has.
inline StepShape with_heads_of(StepShape shape, int tp, int rank) {
    const HeadSplit heads = split_heads(shape.config, tp, rank);
    shape.config.heads = heads.heads, shape.config.kv_heads = heads.kv_heads;
    return shape;
}

}  // namespace ultrascale::five_d
