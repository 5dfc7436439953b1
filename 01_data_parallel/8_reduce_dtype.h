// --reduce-dtype: gradients travel in another dtype than the one they are kept in. With bf16 a
// bucket's all-reduce sends half of what fp32 would.
//
//     rank 0   fp32 gradients of a bucket --round--> bf16 --.               .--> bf16 --> fp32
//     rank 1   fp32 gradients of a bucket --round--> bf16 --+-- all-reduce -+--> bf16 --> fp32
//                                                            (communication_stream)
//
// Micro-batches still add up in fp32, and so does the optimizer: only what is on the wire is short.
// Each rank's summand is rounded once, by at most 1/512 of itself (bf16 keeps 8 bits of a number),
// and then the sum: once over MPI, which adds in fp32 (comm.h), and at every addition over NCCL,
// whose errors grow with the ranks. So the gradient is no longer one device's up to fp32's
// rounding, but up to bf16's. The other way round, bf16 gradients that travel in fp32 are rounded
// only once, after the sum, and send twice as much.
//
// PyTorch's FSDP calls it MixedPrecisionPolicy.reduce_dtype,
// https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html
#pragma once

#include "3_buckets.h"
#include "lab/verify/verify.h"

namespace ultrascale::data_parallel {

class ReduceDtypeSync : public BucketSync {
public:
    // `wire`: the dtype in which gradients travel; `full` as BucketSync's.
    ReduceDtypeSync(ParameterList& parameters, const Mesh& mesh, int64_t full, DType wire)
        : BucketSync(parameters, mesh, full), dtype_(wire), wires_(buckets_.size()) {}

    // What travels is held besides the gradients from a bucket's start to finish(), so at last
    // there is one such tensor for each bucket.
    void add_to(Prediction& prediction, DType) const override {
        BucketSync::add_to(prediction, dtype_);
        for (const Bucket& bucket : buckets_)
            if (bucket.group.size() > 1)
                prediction.memory.peak_communication +=
                    bucket.elements.size() * dtype_bytes(dtype_);
    }

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
    std::vector<Tensor> wires_;  // of each bucket, while it is under way
};

// The bounds of --verify where fp32 gradients are rounded to bf16 on their way. The first loss is
// computed before any gradient travels. The gradient's error is that of two roundings, each with a
// relative error of about 2^-9 / sqrt(3) = 0.0011.
inline VerifyBounds bounds_of_bf16_on_the_wire() {
    VerifyBounds bounds = verify_bounds(DType::bf16);
    bounds.first_loss = verify_bounds(DType::fp32).first_loss;
    bounds.gradient = 1e-2;
    bounds.rounding = DType::fp32;
    return bounds;
}

}  // namespace ultrascale::data_parallel
