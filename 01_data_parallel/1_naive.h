// --sync naive: the plain idea of data parallelism. Every rank holds the whole model and trains on
// its own part of the batch; after the backward, one all-reduce per parameter sums the gradients.
//
//     rank 0   samples 0..7    forward  backward  --.
//     rank 1   samples 8..15   forward  backward  --+--> all-reduce --> the same gradient and so
//     rank 2   samples 16..23  forward  backward  --'                   the same update everywhere
//
// The sum is the gradient of the mean over the whole batch, because each rank has already divided
// its loss by the number of targets of *all* ranks.
//
//     compute        | forward | backward          |                         | update |
//     communication  |                             | p1 | p2 | p3 | ... | pn |
//
// The device idles while the gradients travel, and n small messages pay the latency n times. The
// following files mend that. The playbook: "Data Parallelism"; Li et al. 2020, PyTorch Distributed,
// https://arxiv.org/abs/2006.15704
#pragma once

#include "comm/comm.h"
#include "core/trace.h"
#include "model/llama.h"
#include "train/gradients.h"

namespace ultrascale::data_parallel {

// The interface that all ways to sum the gradients share. They are hooks of the model (parts.h), so
// that they can begin while the backward still runs, and have a finish(). They differ in when the
// all-reduces start and how large they are.
class GradientSync : public Hooks {
public:
    GradientSync(ParameterList& parameters, const Mesh& mesh)
        : parameters_(parameters), mesh_(mesh), ranks_(mesh.data_group()) {}

    // Called after the backward that completes the gradients (4_accumulation.h). Work that is
    // queued on the compute stream afterwards sees the sums.
    virtual void finish() = 0;

protected:
    ParameterList& parameters_;
    const Mesh& mesh_;
    const Communicator& ranks_;  // the ranks that share a batch
};

class NaiveSync : public GradientSync {
public:
    using GradientSync::GradientSync;

    void finish() override {
        parameters_.check_complete();
        for (const auto& parameter : parameters_) {
            const TraceName name(TraceName::whole, parameter->name);
            data_group(mesh_, *parameter).all_reduce(parameter->grad);
        }
        // Sums a weight of which two ranks hold a copy, such as a tied one in 09's pipeline. There
        // is none here.
        sum_over_replica_groups(parameters_, mesh_);
    }
};

}  // namespace ultrascale::data_parallel
