// --sync bucket: gradients are gathered into buckets of --bucket-mb, and a bucket travels when its
// last gradient is complete.
//
//     compute        | forward | backward  L8    L7    L6   ...   L1 |   | update |
//     communication  |                    | bucket 1 | bucket 2 | ... |
//
// Few large messages instead of many small ones, still under the backward. Gradients appear roughly
// in the reverse of the order in which forward uses the parameters, and they lie in that order in
// one flat tensor (parameter.h), so a bucket is a stretch of it that is filled from its end:
// nothing is copied.
//
//     flat gradients  [ embedding | L1 ......... | L2 ......... | ... | L8 ......... | norm, head ]
//                     [ bucket 3              |  bucket 2               |  bucket 1             ]
//                     <- backward goes this way
#pragma once

#include <map>
#include <vector>

#include "gradient_sync.h"

namespace ultrascale {

class BucketSync : public GradientSync {
public:
    // A bucket is full with `full` elements.
    BucketSync(ParameterList& parameters, const Mesh& mesh, int64_t full)
        : GradientSync(parameters, mesh) {
        int64_t end = parameters.local_numel(), begin = end;
        std::vector<Parameter*> members;
        for (auto it = parameters.end(); it != parameters.begin();) {
            Parameter* parameter = (--it)->get();
            begin -= parameter->local_numel();
            members.push_back(parameter);
            const Communicator& group = mesh.data_group(*parameter);
            const bool others =
                it == parameters.begin() || &mesh.data_group(**std::prev(it)) != &group;
            if (end - begin < full && !others) continue;
            for (Parameter* member : members) bucket_of_[member] = buckets_.size();
            buckets_.push_back({{begin, end}, group, int(members.size()), int(members.size())});
            members.clear();
            end = begin;
        }
    }

    void gradient_complete(Parameter& parameter, const Context&) override {
        const size_t index = bucket_of_.at(&parameter);
        const TraceName name(TraceName::whole, "bucket", int64_t(index) + 1);
        Bucket& bucket = buckets_[index];
        if (--bucket.missing > 0) return;
        bucket.missing = bucket.members;  // of the next sum
        start(bucket, parameters_.flat_grads().slice(bucket.elements.begin, bucket.elements.end));
    }
    void finish() override {
        parameters_.check_complete();
        for (Bucket& bucket : buckets_) {
            for (Work& work : bucket.under_way) work.wait();
            bucket.under_way.clear();
        }
        sum_besides(parameters_, mesh_);
    }
    void add_to(Prediction& prediction, DType gradients) const override {
        for (const Bucket& bucket : buckets_)
            prediction.communication.add(bucket.group, Collective::all_reduce, 1,
                                         bucket.elements.size() * dtype_bytes(gradients));
    }

protected:
    struct Bucket {
        Range elements;             // of the flat gradients
        // that sums them: experts have another than the rest of the model
        const Communicator& group;
        int members, missing;       // parameters in it; of them not yet complete
        std::vector<Work> under_way = {};
    };
    // What makes a full bucket's gradients the sum of all ranks': here one all-reduce, more in
    // hierarchical.h.
    virtual void start(Bucket& bucket, const Tensor& gradients) {
        bucket.under_way.push_back(
            bucket.group.all_reduce(gradients, Reduce::sum, communication_stream()));
    }
    std::vector<Bucket> buckets_;  // in the order in which backward fills them
    std::map<const Parameter*, size_t> bucket_of_;
};

}  // namespace ultrascale
