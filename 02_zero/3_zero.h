// ZeRO: data parallelism in which each of the n ranks holds a shard of what it would otherwise hold
// whole (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
// Models", https://arxiv.org/abs/1910.02054; the playbook's "ZeRO"). Each stage shards one thing
// more. The table shows bytes per rank for Psi parameters in bf16 with fp32 master weights (k = 12:
// the master weights and Adam's two moments), and what a rank sends in a step of A micro-batches.
// The unit of "sent" is (n-1)/n Psi elements, what a reduce-scatter or an all-gather of all
// parameters sends. (An all-reduce is one of each, and so counts 2.)
//
//     stage   parameters   gradients   optimizer   sent
//       0       2 Psi        2 Psi      k Psi      2       all-reduce of gradients
//       1       2 Psi        2 Psi      k Psi/n    2       reduce-scatter, all-gather of parameters
//       2       2 Psi        2 Psi/n    k Psi/n    A + 1   a reduce-scatter each micro-batch
//       3       2 Psi/n      2 Psi/n    k Psi/n    <= 3 A  and two all-gathers each micro-batch
//
// One step, whatever the stage (train_step in main.cpp). A stage is a set of Hooks (model/parts.h):
// the model itself makes the calls in the rows "forward" and "backward", before and after each
// unit. A unit is the embedding, one layer, or the final norm with the head. All collectives return
// a Work (comm/comm.h), whose wait() is where compute waits for the communication.
//
//     start()                                             once, before the first step
//     begin_step()
//     for each micro-batch:
//         begin_micro_batch()
//         forward, first unit to last:  before(unit), after(unit)
//         backward, last to first:      before(unit), gradient_complete(parameter), after(unit)
//         end_micro_batch()
//     end_all_micro_batches()                             in a pipeline, instead of these two
//     squared_norm()                                      of the gradient, which is complete
//     update()
//     finish()                                            before other code reads parameters
//
// What each stage does in these calls; a column is a file, and "+" means: in addition to what the
// column to its left does. [B]: with the buffers of 5_gradient_buffers.h. [Z]: the code is in this
// file.
//
//                       4_zero0.h       4_zero1.h          5_zero2.h          6_zero3.h
//     start             all is whole    optimizer sharded  + gradients        + parameters
//     before a forward  -               wait for gather    wait for gather    all-gather ahead
//     before backward   -               -                  buffer [B]         + all-gather ahead
//     gradient_complete all-reduce      reduce-scatter     count [B]          count [B]
//     after a forward   -               -                  -                  free parameters
//     after backward    -               -                  reduce-scatter     + free parameters
//     end_micro_batch   wait            wait               wait, add [B]      wait, add [B]
//     squared_norm      of shards       of shards [Z]      of shards [Z]      of shards [Z]
//     update            AdamW of all    update_shards [Z]  update_shards [Z]  update_shards [Z]
//                                       and all-gather     and all-gather
//     finish            -               wait [Z]           wait [Z]           -
//
// So all are made of four verbs: gather parameters, reduce gradients, update shards, free what is
// whole. What is added after the stages replaces a verb: where the update is made (7_offload.h),
// how many bits travel (8_narrow.h), when gradients are summed (9_every_micro_batch.h).
//
// All stages cut the model in the same way (2_flat_layout.h) and add up the gradient's norm shard
// by shard in rank order, so on a CPU their results are the same bit by bit.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "core/trace.h"
#include "train/gradients.h"
#include "train/updater.h"
#include "zero_options.h"

namespace ultrascale::zero {

class Zero : public Updater {
public:
    // `units`: all units that this process trains, in forward's order. They may belong to several
    // Llamas (the stages of a pipeline) whose parameters are in one list.
    Zero(ParameterList& parameters, std::vector<const Unit*> units, const Mesh& mesh,
         const Options& options, const ZeroOptions& zero)
        : parameters_(parameters),
          units_(std::move(units)),
          mesh_(mesh),
          options_(options),
          zero_(zero),
          layout_(units_, mesh, zero.cut) {}

    // A stage's start() also allocates parameters and gradients, and creates the optimizer.
    void begin_micro_batch(int64_t micro_batch, bool last) override {
        first_ = micro_batch == 0, last_ = last;
    }
    void end_micro_batch() override {
        phase("wait for gradients", [&] { wait_for_gradients(); });
    }
    void finish() override {
        for (Work& gather : gathers_) gather.wait();
    }

    std::vector<TensorPart> gradients() override { return shard_parts(grad_shards_); }
    std::vector<TensorPart> values() override { return parameters_.parts(&Parameter::value); }
    std::vector<TensorPart> states() override { return states_of(optimizers_, parameters_); }

protected:
    virtual void wait_for_gradients() = 0;  // until this micro-batch's have been summed

    // ---- One flat tensor of the layout: its name in the trace, its ranks, its place ------------
    // `u` is a place in layout_, not in units_: a unit has one flat tensor, or several where its
    // parameters are sharded over different ranks. In this chapter it is always one.
    TraceName name_of(size_t u) const { return {TraceName::whole, layout_[u].name}; }
    const Communicator& ranks_of(size_t u) const { return *layout_[u].group; }
    Tensor unit_slice(const Tensor& all, size_t u) const {
        int64_t begin = 0;
        for (size_t before = 0; before < u; ++before) begin += layout_[before].padded;
        return all.slice(begin, begin + layout_[u].padded);
    }
    Range shard_of(size_t u) const { return layout_.shard_of(u, ranks_of(u).rank()); }
    // This rank's shard of a flat tensor that is whole here.
    Tensor my_shard(size_t u, const Tensor& whole) const {
        const Range shard = shard_of(u);
        return whole.slice(shard.begin, shard.end);
    }
    // Allocates all flat tensors as one, in symmetric memory where there is any (comm/comm.h), so
    // that other GPUs can write into it. `member` (value or grad) of each parameter becomes a view
    // of it.
    Tensor allocate_flat(DType dtype, Memory category, Tensor Parameter::*member) {
        const auto reachable = mesh_.data_group().symmetric_memory();
        Tensor flat = Tensor::zeros({layout_.padded()}, dtype, category, reachable);
        for (size_t u = 0; u < layout_.size(); ++u) layout_.bind(u, unit_slice(flat, u), member);
        return flat;
    }
    // Counts the complete gradients of a flat tensor in this micro-batch; returns true at the last
    // one.
    bool unit_complete(const Parameter& parameter) {
        const size_t unit = layout_.flat_of(parameter);
        if (complete_.empty()) complete_.resize(layout_.size());
        if (++complete_[unit] < layout_[unit].segments.size()) return false;
        complete_[unit] = 0;
        return true;
    }

    // ---- The norm ------------------------------------------------------------------------------
    // The squared norm of the whole gradient. Each rank adds up its own shards, and only one number
    // travels. Where several ranks hold copies of a parameter (along tp), only the first one counts
    // it. Axes that this chapter's mesh does not have change nothing.
    Tensor sum_squares() override {
        sum_over_replica_groups(grad_shards_);
        return sum_squares_of(grad_shards_);
    }
    Tensor sum_squares_of(const std::vector<Tensor>& shards) const {
        std::vector<Tensor> counted;
        for (size_t u = 0; u < shards.size(); ++u)
            for (const auto& [parameter, begin, at] : layout_.pieces(u, shard_of(u)))
                if (counts_shards(mesh_, *parameter))
                    counted.push_back(shards[u].slice(at.begin, at.end));
        return sum_of_squares(counted);
    }
    const Communicator* norm_group() const override { return &mesh_.norm_group_of_shards(); }
    // Some gradients must also be summed over further groups (Parameter::replica_groups), after
    // the last backward. This does what sum_over_replica_groups() of train/gradients.h does, but on
    // shards. This chapter alone has no such gradients; with tensor parallelism (03) those of the
    // norms are, and those of key-value heads that several ranks hold.
    void sum_over_replica_groups(const std::vector<Tensor>& shards) {
        for (size_t u = 0; u < shards.size(); ++u)
            sum_over_replica_groups(u, shards[u], shard_of(u));
    }
    void sum_over_replica_groups(size_t u, const Tensor& gradients, const Range& range) {
        const TraceName name = name_of(u);
        const std::vector<std::string> of_all = layout_.replica_groups(u);
        const bool under_way = over_replicas_.contains(u);
        if (under_way) over_replicas_.at(u).wait(), over_replicas_.erase(u);
        for (const auto& [parameter, begin, at] : layout_.pieces(u, range))
            for (const std::string& group : FlatLayout::besides(of_all, *parameter))
                mesh_.group(group).all_reduce(gradients.slice(at.begin, at.end));
        for (const std::string& group : of_all)
            if (!under_way || group != "replica") mesh_.group(group).all_reduce(gradients);
    }

    // Starts one of these sums early (7_hybrid.h): that of a shard over the ranks that hold the
    // same one, if there are any. It is called when the shard has its last contribution of the
    // step, and runs under the backward of the units below.
    void start_over_replicas(size_t u, const Tensor& shard) {
        if (!last_ || zero_.every_micro_batch || !mesh_.has("replica")) return;
        over_replicas_[u] =
            mesh_.group("replica").all_reduce(shard, Reduce::sum, communication_stream());
    }

    // ---- This rank's shards (stages 1 to 3) ----------------------------------------------------
    // Creates an optimizer for each unit's shard.
    TrainingState start_optimizers() {
        make_optimizers();
        gathers_.resize(layout_.size());
        return resume();
    }
    virtual void make_optimizers() {
        for (size_t u = 0; u < layout_.size(); ++u)
            make_optimizer(u, value_shards_[u], grad_shards_[u]);
    }
    void make_optimizer(size_t u, const Tensor& values, const Tensor& grads) {
        optimizers_.emplace_back(layout_.shard_items(u, ranks_of(u).rank(), values, grads),
                                 options_.optimizer);
    }
    // Updates the shards, one unit after the other, and calls ready(unit) after each.
    virtual void update_shards(double lr, const Tensor& squared_norm,
                               const std::function<void(size_t)>& ready) {
        for (size_t u = 0; u < layout_.size(); ++u) {
            const TraceName name = name_of(u);
            optimizers_[u].step(lr, squared_norm);
            ready(u);
        }
    }
    // Stages 1 and 2: starts the all-gather of a flat tensor whose shards have been updated, into
    // its place in `values`, which holds all of them.
    void start_gather(size_t u, const Tensor& values) {
        const TraceName name = name_of(u);
        gathers_[u] =
            ranks_of(u).all_gather(unit_slice(values, u), value_shards_[u], communication_stream());
    }
    std::vector<TensorPart> shard_parts(const std::vector<Tensor>& shards) const {
        std::vector<TensorPart> parts;
        for (size_t u = 0; u < layout_.size(); ++u)
            for (const AdamW::Item& item :
                 layout_.shard_items(u, ranks_of(u).rank(), shards[u], shards[u]))
                parts.emplace_back(*item.parameter, item.value, item.begin);
        return parts;
    }
    TrainingState resume() { return resume_or_start(options_, optimizers_, parameters_); }

    ParameterList& parameters_;
    std::vector<const Unit*> units_;
    const Mesh& mesh_;
    const Options& options_;
    ZeroOptions zero_;
    FlatLayout layout_;
    std::vector<Tensor> value_shards_, grad_shards_;  // of each unit: (shard)
    std::vector<AdamW> optimizers_;         // one in stage 0, else one for each unit's shard
    std::vector<Work> gathers_;             // of each unit's parameters
    std::map<size_t, Work> over_replicas_;  // sums under way
    bool first_ = true, last_ = true;       // whether it is the step's first or last micro-batch

private:
    std::vector<size_t> complete_;  // of each unit
};

}  // namespace ultrascale::zero
