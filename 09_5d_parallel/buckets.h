// --zero 0: plain data parallelism, with the gradients of chapter 01's buckets and an optimizer
// that every rank runs whole; called as ZeRO's stages are.
#pragma once

#include "01_data_parallel/bucket.h"
#include "02_zero/zero.h"
#include "axes.h"

namespace ultrascale::five_d {

class Buckets : public Zero {
public:
    // `full`: the number of elements at which a bucket is full.
    Buckets(ParameterList& parameters, std::vector<const Unit*> units, const Mesh& mesh,
            const Options& options, int64_t full)
        : Zero(parameters, std::move(units), mesh, options, {.stage = 0}),
          sync_(parameters, mesh, full) {}

    TrainingState start() override {
        parameters_.allocate_values(options_.dtype);
        parameters_.allocate_grads(options_.grad_dtype(),
                                   mesh_.group({"dp", "cp", "ep"}).symmetric_memory());
        load_or_initialize(options_, parameters_);
        optimizers_.emplace_back(parameters_, options_.optimizer);
        return resume();
    }
    void begin_step(int64_t micro_batches) override { parameters_.begin_gradients(micro_batches); }
    void gradient_complete(Parameter& parameter, const Context& context) override {
        sync_.gradient_complete(parameter, context);
    }
    void end_micro_batch() override {
        if (last_) sync_.finish();
    }
    Tensor squared_norm() override { return squared_gradient_norm(parameters_, mesh_); }
    void update(double lr, const Tensor& squared_norm) override {
        optimizers_.front().step(lr, squared_norm);
    }
    std::vector<TensorPart> gradients() override { return parameters_.parts(&Parameter::grad); }

    const BucketSync& sync() const { return sync_; }

private:
    BucketSync sync_;
};

}  // namespace ultrascale::five_d
