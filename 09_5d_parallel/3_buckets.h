// --zero 0: plain data parallelism. Gradients are summed in chapter 01's buckets, and every rank
// runs the whole optimizer.
#pragma once

#include "01_data_parallel/3_buckets.h"
#include "1_axes.h"
#include "train/updater.h"

namespace ultrascale::five_d {

class Buckets : public PlainUpdater {
public:
    // `full`: the number of elements at which a bucket is full.
    Buckets(ParameterList& parameters, const Mesh& mesh, const Options& options, int64_t full)
        : PlainUpdater(parameters, options, &mesh), sync_(parameters, mesh, full) {}

    TrainingState start() override {
        parameters_.allocate_values(options_.dtype);
        parameters_.allocate_grads(options_.grad_dtype(), mesh_->data_group().symmetric_memory());
        return PlainUpdater::start();
    }
    void begin_micro_batch(int64_t, bool last) override { last_ = last; }
    void gradient_complete(Parameter& parameter, const Context& context) override {
        sync_.gradient_complete(parameter, context);
    }
    void end_micro_batch() override {
        if (last_) phase("wait for gradients", [&] { sync_.finish(); });
    }

private:
    BucketSync sync_;
    bool last_ = true;
};

}  // namespace ultrascale::five_d
