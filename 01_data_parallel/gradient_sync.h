// What all ways to make the ranks' gradients one have in common.
//
// Every rank holds the whole model and trains on its own part of the batch. After the last backward each must hold the sum of all
// ranks' gradients (each rank's loss is already divided by the *global* count of targets, so the sum is the gradient of the mean):
//
//     rank 0   samples 0..7    forward  backward  --.
//     rank 1   samples 8..15   forward  backward  --+--> all-reduce --> the same gradient --> the same update everywhere
//     rank 2   samples 16..23  forward  backward  --'
//
// The techniques differ in when the all-reduces start and how large they are. The book: "Data Parallelism", first, second and third
// optimization; Li et al. 2020, PyTorch Distributed, https://arxiv.org/abs/2006.15704
#pragma once

#include "comm.h"
#include "llama.h"
#include "report.h"
#include "trace.h"

namespace ultrascale {

class GradientSync : public Hooks {
public:
    GradientSync(ParameterList& parameters, const Communicator& ranks) : parameters_(parameters), ranks_(ranks) {}

    // Whether the coming micro-batch's backward is followed by a synchronisation. With gradient accumulation only the last one
    // is (PyTorch's no_sync): the others just add to the gradients.
    virtual void begin_micro_batch(bool synchronize) { synchronize_ = synchronize; }
    // After the backward: when it returns, what compute does next sees the sums.
    virtual void finish() = 0;
    // Of one synchronisation, for the report.
    virtual PredictedCommunication predicted() const = 0;
    virtual int64_t buffer_bytes() const { return 0; }  // the most that it holds beside the gradients

protected:
    PredictedCommunication all_reduces(int64_t calls) const {
        PredictedCommunication p;
        p.add(Collective::all_reduce, calls, parameters_.flat_grads().bytes(), ranks_.size());
        return p;
    }
    ParameterList& parameters_;
    const Communicator& ranks_;
    bool synchronize_ = true;
};

// Without communication: each rank keeps its own gradients. To compare with (compare.h), and for ranks that meet later (diloco.h).
class NoSync : public GradientSync {
public:
    using GradientSync::GradientSync;
    void finish() override {}
    PredictedCommunication predicted() const override { return {}; }
};

}  // namespace ultrascale
