// --sync bucket adds: gradients are grouped into buckets of --bucket-mb. A bucket's all-reduce
// starts when its last gradient is complete.
//
//     compute        | forward | backward  L8    L7    L6   ...   L1 |   | update |
//     communication  |                    | bucket 1 | bucket 2 | ... |
//
// This sends few large messages instead of many small ones, still during the backward: on four
// H200s 121 instead of 218, and a step of 372 ms takes 364 (README.md). The gradients lie in one
// flat tensor (parameter.h) in the order in which forward uses the parameters, and backward
// completes them roughly in reverse. So a bucket is a contiguous range of that tensor, filled from
// its end, and nothing needs to be copied.
//
//     flat gradients  [ embedding | L1 ......... | L2 ......... | ... | L8 ......... | norm, head ]
//                     [ bucket 3              |  bucket 2               |  bucket 1             ]
//                     <- backward goes this way
#pragma once

#include <map>
#include <vector>

#include "1_naive.h"

namespace ultrascale::data_parallel {

class BucketSync : public GradientSync {
public:
    struct Bucket {
        Range elements;  // of the flat gradients
        // The ranks that sum them; for experts they are not the ranks of the rest of the model.
        const Communicator& group;
        int members, missing;  // its parameters; those not yet complete
        std::vector<Work> under_way = {};
    };
    // `full`: the number of elements at which a bucket is full.
    BucketSync(ParameterList& parameters, const Mesh& mesh, int64_t full)
        : GradientSync(parameters, mesh) {
        int64_t end = parameters.local_numel(), begin = end;
        std::vector<Parameter*> members;
        for (auto it = parameters.end(); it != parameters.begin();) {
            Parameter* parameter = (--it)->get();
            begin -= parameter->local_numel();
            members.push_back(parameter);
            const Communicator& group = data_group(mesh, *parameter);
            const bool others =
                it == parameters.begin() || &data_group(mesh, **std::prev(it)) != &group;
            if (end - begin < full && !others) continue;
            for (Parameter* member : members) bucket_of_[member] = buckets_.size();
            buckets_.push_back({{begin, end}, group, int(members.size()), int(members.size())});
            members.clear();
            end = begin;
        }
    }

    void gradient_complete(Parameter& parameter, const Context&) override {
        // exercise 01.2 begin: when a bucket's last gradient is complete, start its sum
        const size_t index = bucket_of_.at(&parameter);
        const TraceName name(TraceName::whole, "bucket", int64_t(index) + 1);
        Bucket& bucket = buckets_[index];
        if (--bucket.missing > 0) return;
        bucket.missing = bucket.members;  // for the next sum
        start(bucket, of(bucket));
        // exercise 01.2 end
    }
    void finish() override {
        parameters_.check_complete();
        for (Bucket& bucket : buckets_) {
            for (Work& work : bucket.under_way) work.wait();
            bucket.under_way.clear();
            arrived(bucket);
        }
        sum_over_replica_groups(parameters_, mesh_);
    }
    const std::vector<Bucket>& buckets() const { return buckets_; }

protected:
    // Starts to sum a full bucket's gradients over all ranks: here by one all-reduce, in
    // 7_hierarchical.h by three collectives.
    virtual void start(Bucket& bucket, const Tensor& gradients) {
        if (bucket.group.size() == 1) return;
        bucket.under_way.push_back(
            bucket.group.all_reduce(gradients, Reduce::sum, communication_stream()));
    }
    // Called in finish() when a bucket's sum is complete. 8_reduce_dtype.h then converts it back.
    virtual void arrived(Bucket&) {}
    Tensor of(const Bucket& bucket) const {  // its gradients
        return parameters_.flat_grads().slice(bucket.elements.begin, bucket.elements.end);
    }
    std::vector<Bucket> buckets_;  // in the order in which backward fills them
    std::map<const Parameter*, size_t> bucket_of_;
};

}  // namespace ultrascale::data_parallel
