// --sync bucket: gradients are gathered into buckets of --bucket-mb, and a bucket travels when its last gradient is complete.
//
//     compute        | forward | backward  L8    L7    L6   ...   L1 |   | update |
//     communication  |                    | bucket 1 | bucket 2 | ... |
//
// Few large messages instead of many small ones, still under the backward. Gradients appear roughly in the reverse of the order in
// which forward uses the parameters, and they lie in that order in one flat tensor (parameter.h), so a bucket is a stretch of it that
// is filled from its end: nothing is copied.
//
//     flat gradients   [ embedding | L1 ......... | L2 ......... | ... | L8 ......... | norm, head ]
//                      [ bucket 3              |  bucket 2               |  bucket 1             ]   <- backward goes this way
#pragma once

#include <map>
#include <vector>

#include "gradient_sync.h"

namespace ultrascale {

class BucketSync : public GradientSync {
public:
    BucketSync(ParameterList& parameters, const Communicator& ranks, int64_t bucket_bytes) : GradientSync(parameters, ranks) {
        int64_t end = parameters.local_numel(), begin = end;
        std::vector<Parameter*> members;
        for (auto it = parameters.end(); it != parameters.begin();) {
            Parameter* parameter = (--it)->get();
            begin -= parameter->local_numel();
            members.push_back(parameter);
            const Tensor gradients = parameters.flat_grads().slice(begin, end);
            if (gradients.bytes() < bucket_bytes && it != parameters.begin()) continue;
            for (Parameter* member : members) bucket_of_[member] = buckets_.size();
            buckets_.push_back({gradients, int(members.size())});
            members.clear();
            end = begin;
        }
    }

    void begin_micro_batch(bool synchronize) override {
        GradientSync::begin_micro_batch(synchronize);
        for (Bucket& bucket : buckets_) bucket.missing = bucket.members;
    }
    void gradient_complete(Parameter& parameter, const Context&) override {
        if (!synchronize_) return;
        const size_t index = bucket_of_.at(&parameter);
        const TraceName name(TraceName::whole, "bucket", int64_t(index) + 1);
        Bucket& bucket = buckets_[index];
        if (--bucket.missing == 0) start(bucket);
    }
    void finish() override {
        for (Bucket& bucket : buckets_) {
            check(bucket.missing == 0, "a bucket's gradients are not complete");
            for (Work& work : bucket.under_way) work.wait();
            bucket.under_way.clear();
        }
    }
    PredictedCommunication predicted() const override { return all_reduces(int64_t(buckets_.size())); }

protected:
    struct Bucket {
        Tensor gradients;  // a stretch of the flat gradients
        int members, missing = 0;
        std::vector<Work> under_way = {};
    };
    // What makes a full bucket's gradients the sum of all ranks': here one all-reduce, more in hierarchical.h.
    virtual void start(Bucket& bucket) {
        bucket.under_way.push_back(ranks_.all_reduce(bucket.gradients, Reduce::sum, communication_stream()));
    }
    std::vector<Bucket> buckets_;  // in the order in which backward fills them
    std::map<const Parameter*, size_t> bucket_of_;
};

}  // namespace ultrascale
