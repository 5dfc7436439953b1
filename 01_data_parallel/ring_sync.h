// --sync ring: the whole gradient by our own ring all-reduce (ring_all_reduce.h), after the backward.
//
// It moves as few bytes as any all-reduce can, yet nothing overlaps: the additions of the ring run on the compute stream, where the
// backward runs too. (NCCL adds inside its communication kernels.)
#pragma once

#include "gradient_sync.h"
#include "ring_all_reduce.h"

namespace ultrascale {

class RingSync : public GradientSync {
public:
    RingSync(ParameterList& parameters, const Communicator& ranks, RingDirections directions)
        : GradientSync(parameters, ranks), directions_(directions) {}

    void finish() override {
        const TraceName name(TraceName::whole, "gradients");
        ring_all_reduce(ranks_, parameters_.flat_grads(), directions_);
    }
    PredictedCommunication predicted() const override {
        const Tensor& flat = parameters_.flat_grads();
        PredictedCommunication p;
        p.add(Collective::send_recv,
              predict_ring_all_reduce(flat.numel(), flat.dtype(), ranks_.rank(), ranks_.size(), directions_));
        return p;
    }
    int64_t buffer_bytes() const override {
        int64_t elements = 0;
        for (const Ring& ring : make_rings(parameters_.flat_grads(), ranks_.rank(), ranks_.size(), directions_))
            elements += ring.longest_chunk();
        return ranks_.size() > 1 ? elements * dtype_bytes(parameters_.flat_grads().dtype()) : 0;
    }

private:
    RingDirections directions_;
};

}  // namespace ultrascale
