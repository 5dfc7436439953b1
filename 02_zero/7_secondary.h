// With --secondary-shard S stage 3 keeps a second set of shards, of the parameters only, in each
// group of S neighbouring ranks, a node (ZeRO++'s hpZ: Wang et al. 2023,
// https://arxiv.org/abs/2306.10209). The parameters do not change within a step. So only a unit's
// first gather has to come from the shards of all n ranks; of what arrives each rank keeps 1/S, and
// the step's other gathers stay inside the node:
//
//                     node 0                         node 1
//                rank 0   rank 1                rank 2   rank 3
//     shards      [ 0 ]    [ 1 ]                 [ 2 ]    [ 3 ]      first forward: over all ranks
//     secondary   [  0  ]  [  1  ]               [  0  ]  [  1  ]    all other passes: inside
//
// Of the 2 A gathers of a step with A micro-batches one crosses nodes. (ZeRO++ renews the secondary
// shards in each forward, so that A cross.) The reduce-scatters still do: --shard-size
// (7_hybrid.h) keeps these inside, too, but divides gradients and states by S. Here they stay
// divided by n, and what is added are the bytes of Psi / S parameters.
#pragma once

#include "6_zero3.h"

namespace ultrascale::zero {

class SecondaryShards : public Zero3 {
public:
    using Zero3::Zero3;

    TrainingState start() override {
        const Communicator& all = mesh_.data_group();
        const int S = zero_.secondary_shard;
        inside_.emplace(all.split(all.rank() / S, all.rank() % S, "secondary", S, all.rank() % S));
        for (size_t u = 0; u < layout_.size(); ++u)
            secondary_.push_back(
                Tensor::zeros({layout_[u].padded / S}, options_.dtype, Memory::parameter));
        up_to_date_.assign(layout_.size(), false);
        return Zero3::start();
    }
    void begin_step(int64_t micro_batches) override {
        up_to_date_.assign(layout_.size(), false);
        Zero3::begin_step(micro_batches);
    }
    void update(double lr, const Tensor& squared_norm) override {
        Zero3::update(lr, squared_norm);
        up_to_date_.assign(layout_.size(), false);  // also for a validation before the next step
    }

protected:
    void gather(size_t u) override {
        if (!up_to_date_[u]) return Zero3::gather(u);
        if (whole_[u]) return;
        const TraceName name = name_of(u);
        whole_[u] = Tensor::empty({layout_[u].padded}, options_.dtype, Memory::communication);
        gathers_[u] = inside_->all_gather(whole_[u], secondary_[u], communication_stream());
    }
    void arrive(size_t u) override {
        Zero3::arrive(u);
        if (up_to_date_[u]) return;
        const int64_t size = secondary_[u].numel(), begin = inside_->rank() * size;
        ops::copy(secondary_[u], whole_[u].slice(begin, begin + size));
        up_to_date_[u] = true;
    }

    std::vector<bool> up_to_date_;  // of each unit: whether its secondary shard has these weights

private:
    std::optional<Communicator> inside_;
    std::vector<Tensor> secondary_;  // of each unit: (padded / S)
};

}  // namespace ultrascale::zero
