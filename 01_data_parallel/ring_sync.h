// --sync ring: sums the whole gradient by our own ring all-reduce (ring_all_reduce.h), after the
// backward.
//
// It moves as few bytes as any all-reduce can, yet nothing overlaps: the ring's additions run on
// the compute stream, where the backward runs too. (NCCL adds inside its communication kernels.)
#pragma once

#include "gradient_sync.h"
#include "6_ring_all_reduce.h"

namespace ultrascale::data_parallel {

class RingSync : public GradientSync {
public:
    RingSync(ParameterList& parameters, const Mesh& mesh, RingDirections directions)
        : GradientSync(parameters, mesh), directions_(directions) {
        for (const auto& parameter : parameters)
            check(&data_group(mesh, *parameter) == &ranks_,
                  "ring: all gradients are summed over the same ranks");
    }

    void finish() override {
        parameters_.check_complete();
        const TraceName name(TraceName::whole, "gradients");
        ring_all_reduce(ranks_, parameters_.flat_grads(), directions_);
        sum_over_replica_groups(parameters_, mesh_);
    }
    void add_to(Prediction& prediction, DType gradients) const override {
        const int64_t count = parameters_.local_numel();
        const int rank = ranks_.rank(), n = ranks_.size();
        if (n == 1) return;
        prediction.communication.add(
            ranks_, Collective::send_recv,
            predict_ring_all_reduce(count, gradients, rank, n, directions_));
        for (const int64_t share : ring_shares(count, directions_))
            prediction.memory.peak_communication += longest_part(share, n) * dtype_bytes(gradients);
    }

private:
    RingDirections directions_;
};

}  // namespace ultrascale::data_parallel
