// --reduce-dtype adds: a bucket's gradients travel in another dtype than the one they are kept in.
// With bf16 an all-reduce sends half of what fp32 would: 59 ms a step instead of 98, for a model of
// 1.7 B parameters on two H200s (MEASURED.md).
//
//     rank 0   fp32 gradients of a bucket --round--> bf16 --.               .--> bf16 --> fp32
//     rank 1   fp32 gradients of a bucket --round--> bf16 --+-- all-reduce -+--> bf16 --> fp32
//                                                            (communication_stream)
//
// Micro-batches still add up in fp32, and so does the optimizer: only the numbers on the wire are
// short. Each rank's summand is rounded once, by at most 1/512 of itself (bf16 keeps 8 bits of a
// number). The sum is rounded, too: once over MPI, which adds in fp32 (comm.h), and at every
// addition over NCCL, whose errors grow with the number of ranks. So the gradient equals one
// device's up to bf16's rounding, no longer up to fp32's. If conversely bf16 gradients travel in
// fp32, they are rounded only once, after the sum, and twice as many bytes are sent.
//
// PyTorch's FSDP has the option as MixedPrecisionPolicy.reduce_dtype,
// https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
#pragma once

#include "3_buckets.h"

namespace ultrascale::data_parallel {

class ReduceDtypeSync : public BucketSync {
public:
    // `wire`: the dtype in which gradients travel. `full`: see BucketSync.
    ReduceDtypeSync(ParameterList& parameters, const Mesh& mesh, int64_t full, DType wire)
        : BucketSync(parameters, mesh, full), dtype_(wire), wires_(buckets_.size()) {}

    DType wire() const { return dtype_; }

protected:
    void start(Bucket& bucket, const Tensor& gradients) override {
        if (bucket.group.size() == 1) return;  // nothing travels, so nothing is rounded
        Tensor& wire = wires_[size_t(&bucket - buckets_.data())];
        wire = Tensor::empty(gradients.shape(), dtype_, Memory::communication);
        ops::copy(wire, gradients);
        BucketSync::start(bucket, wire);
    }
    void arrived(Bucket& bucket) override {
        Tensor& wire = wires_[size_t(&bucket - buckets_.data())];
        if (!wire) return;
        ops::copy(of(bucket), wire);
        wire = {};
    }

private:
    DType dtype_;
    std::vector<Tensor> wires_;  // one for each bucket, while it travels
};

}  // namespace ultrascale::data_parallel
