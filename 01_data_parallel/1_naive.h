// --sync naive: one all-reduce per parameter after the backward.
//
//     compute        | forward | backward          |                         | update |
//     communication  |                             | p1 | p2 | p3 | ... | pn |
//
// The device idles while the gradients travel, and n small messages pay the latency n times.
#pragma once

#include "gradient_sync.h"

namespace ultrascale::data_parallel {

class NaiveSync : public GradientSync {
public:
    using GradientSync::GradientSync;

    void finish() override {
        parameters_.check_complete();
        for (const auto& parameter : parameters_) {
            const TraceName name(TraceName::whole, parameter->name);
            data_group(mesh_, *parameter).all_reduce(parameter->grad);
        }
        sum_over_replica_groups(parameters_, mesh_);
    }
    void add_to(Prediction& prediction, DType gradients) const override {
        add_one_all_reduce_each(prediction, gradients);
    }
};

}  // namespace ultrascale::data_parallel
