// With full recomputation a layer keeps its input only. Without sequence parallelism every
// tensor-parallel rank keeps the same one. Here each keeps 1/tp of it, and the ranks gather it when
// the layer's forward runs again. That is s b h / tp a layer instead of s b h, at the price of one
// more all-gather a layer in backward. (With sequence parallelism the input is a shard already.)
// These are ZeRO-R's partitioned activation checkpoints (Rajbhandari et al. 2020, section 6.1).
#pragma once

#include "1_parallel_region.h"
#include "core/ops.h"

namespace ultrascale::tensor_parallel {

class PartitionedCheckpoint : public Checkpoint {
public:
    explicit PartitionedCheckpoint(const ParallelRegion& region)
        : region_(region), group_(region.group()) {}

    void keep(const Tensor& x, Saved& saved, Context&) override {
        const int64_t rows = x.rows() / group_.size(), first = group_.rank() * rows;
        Tensor mine = Tensor::empty({rows, x.cols()}, x.dtype(),
                                    Memory::activation);  // not a view, which would keep all of x
        ops::copy(mine, x.view({x.rows(), x.cols()}).slice(first, first + rows));
        saved.keep("checkpoint", std::move(mine));
    }

    Tensor take(Saved& saved, Context& context) override {
        Tensor mine = saved.take("checkpoint");
        Tensor x = Tensor::empty({context.batch.sequences(), context.batch.length(), mine.cols()},
                                 mine.dtype(), Memory::activation, group_.symmetric_memory());
        region_.gather(x, mine);
        return x;
    }

private:
    const ParallelRegion& region_;
    const Communicator& group_;
};

}  // namespace ultrascale::tensor_parallel
