// What all techniques of summing the ranks' gradients have in common.
//
// Every rank holds the whole model and trains on its own part of the batch. After the last backward
// each must hold the sum of all ranks' gradients (each rank's loss is already divided by the
// *global* count of targets, so the sum is the gradient of the mean):
//
//     rank 0   samples 0..7    forward  backward  --.
//     rank 1   samples 8..15   forward  backward  --+--> all-reduce --> the same gradient and so
//     rank 2   samples 16..23  forward  backward  --'                   the same update everywhere
//
// The techniques differ in when the all-reduces start and how large they are. The book: "Data
// Parallelism", first, second and third optimization; Li et al. 2020, PyTorch Distributed,
// https://arxiv.org/abs/2006.15704
#pragma once

#include "comm/comm.h"
#include "core/trace.h"
#include "lab/report/report.h"
#include "model/llama.h"
#include "train/gradients.h"

namespace ultrascale::data_parallel {

class GradientSync : public Hooks {
public:
    GradientSync(ParameterList& parameters, const Mesh& mesh)
        : parameters_(parameters), mesh_(mesh), ranks_(mesh.group({"dp", "cp", "ep"})) {}

    // Called after the backward that completes the gradients. Whatever is queued on the compute
    // stream afterwards sees the sums. (With gradient accumulation that is the last micro-batch's
    // backward, as with PyTorch's no_sync: the others only add to the gradients.
    // ParameterList::begin_gradients takes their number.)
    virtual void finish() = 0;
    // Adds what one synchronisation sends (except for sum_over_replica_groups()) and what it holds
    // besides the gradients. `gradients`: their dtype; with --estimate they are not allocated.
    virtual void add_to(Prediction& prediction, DType gradients) const = 0;

protected:
    void add_one_all_reduce_each(Prediction& prediction, DType gradients) const {
        for (const auto& parameter : parameters_)
            prediction.communication.add(data_group(mesh_, *parameter), Collective::all_reduce, 1,
                                         parameter->local_numel() * dtype_bytes(gradients));
    }
    ParameterList& parameters_;
    const Mesh& mesh_;
    const Communicator& ranks_;  // the ranks that share a batch
};

// No communication: each rank keeps its own gradients. The baseline of compare.h; diloco.h, which
// communicates weights, uses it too.
class NoSync : public GradientSync {
public:
    using GradientSync::GradientSync;
    void finish() override {}
    void add_to(Prediction&, DType) const override {}
};

}  // namespace ultrascale::data_parallel
