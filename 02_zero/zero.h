// What the stages of ZeRO have in common (Rajbhandari et al. 2020, "ZeRO: Memory Optimizations
// Toward Training Trillion Parameter Models", https://arxiv.org/abs/1910.02054; the playbook's
// "ZeRO").
//
// Data parallelism keeps everything n times. Each stage shards one thing more over the n ranks;
// bytes per rank for Psi parameters in bf16 with fp32 master weights (k = 12: master weights and
// Adam's two moments):
//
//     stage   parameters   gradients   optimizer       sent by a rank per step, in (n-1)/n Psi
//       0        2 Psi       2 Psi      k Psi           all-reduce of gradients (2)                         zero0.h
//       1        2 Psi       2 Psi      k Psi / n       reduce-scatter (1), all-gather of parameters (1)    zero1.h
//       2        2 Psi       2 Psi/n    k Psi / n       the same, the reduce-scatter each micro-batch       zero2.h
//       3        2 Psi/n     2 Psi/n    k Psi / n       two all-gathers and a reduce-scatter each           zero3.h
//
// All stages cut the model alike (flat_layout.h), and add up the gradient's norm shard by shard in
// rank order, so on a CPU they give the same bits.
#pragma once

#include <memory>
#include <vector>

#include "comm/comm.h"
#include "flat_layout.h"
#include "core/ops.h"
#include "report/report.h"
#include "train/setup.h"
#include "core/trace.h"

namespace ultrascale {

enum class GatherOverlap { optimizer, forward };

struct ZeroOptions {
    int stage = 1;
    GatherOverlap gather_overlap = GatherOverlap::forward;
    int64_t prefetch = 1;            // of stage 3, in units
    bool offload = false;  // of stages 1 to 3: the optimizer's states and work to the host
    // stages 0 and 1: communicate gradients after each micro-batch, as 2 and 3 do anyway
    bool every_micro_batch = false;
};

class Zero : public Hooks {
public:
    // The units are of one model or of several, whose parameters are in one list.
    Zero(ParameterList& parameters, std::vector<const Unit*> units, const Mesh& mesh,
         const Options& options, const ZeroOptions& zero)
        : parameters_(parameters), units_(std::move(units)), mesh_(mesh), options_(options),
          zero_(zero), layout_(units_, mesh) {}

    // Gives parameters and gradients their storage, values from --load or --seed, and the optimizer
    // its states. Returns where training stands.
    virtual TrainingState start() = 0;

    // One step: begin_step; for each micro-batch begin_micro_batch, forward, backward,
    // end_micro_batch; then squared_norm (1, fp64: the gradient is complete) and update. finish()
    // waits until the parameters are complete.
    virtual void begin_step(int64_t micro_batches) {
        parameters_.begin_gradients(zero_.every_micro_batch ? 1 : micro_batches);
    }
    virtual void begin_micro_batch(int64_t micro_batch, bool last) {
        first_ = micro_batch == 0, last_ = last;
    }
    virtual void end_micro_batch() {}
    virtual Tensor squared_norm() = 0;
    virtual void update(double lr, const Tensor& squared_norm) = 0;
    virtual void finish() {}

    // What this rank holds: to verify and to save.
    virtual std::vector<TensorPart> gradients() = 0;
    virtual std::vector<TensorPart> values() { return parameters_.parts(&Parameter::value); }
    std::vector<TensorPart> optimizer_states() {
        std::vector<TensorPart> all;
        for (AdamW& optimizer : optimizers_)
            for (TensorPart& part : optimizer.states()) all.push_back(std::move(part));
        for (const TensorPart& buffer : parameters_.buffers()) all.push_back(buffer);
        return all;
    }
    const FlatLayout& layout() const { return layout_; }
    const std::vector<const Unit*>& units() const { return units_; }
    virtual void print_offload(Report&) {}

protected:
    // Flat storage for all units, one after the other, where other ranks may write to it; and where
    // a unit's part of it is.
    Tensor allocate_flat(DType dtype, Memory category, Tensor Parameter::*member) {
        const auto reachable = mesh_.group({"dp", "cp", "ep"}).symmetric_memory();
        Tensor flat = Tensor::zeros({layout_.padded()}, dtype, category, reachable);
        for (size_t u = 0; u < layout_.size(); ++u) layout_.place(u, of_unit(flat, u), member);
        return flat;
    }
    Tensor of_unit(const Tensor& flat, size_t unit) const {
        int64_t begin = 0;
        for (size_t u = 0; u < unit; ++u) begin += layout_[u].padded;
        return flat.slice(begin, begin + layout_[unit].padded);
    }
    // What a unit's communication and update are called in the trace.
    TraceName name_of(size_t unit) const { return {TraceName::whole, layout_[unit].unit->name}; }
    // The ranks that share out a unit, and this rank's shard of a flat tensor that holds all of it.
    const Communicator& ranks_of(size_t unit) const { return *layout_[unit].group; }
    Tensor my_shard(size_t unit, const Tensor& flat) const {
        const int64_t shard = layout_[unit].shard, rank = ranks_of(unit).rank();
        return flat.slice(rank * shard, (rank + 1) * shard);
    }
    // The squared norm of the whole gradient from each rank's shards: one number travels. Of what
    // ranks of a model axis hold copies of, one counts.
    Tensor sum_squares(const std::vector<Tensor>& shards) const {
        Tensor sum = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        std::vector<Tensor> counted;
        for (size_t u = 0; u < shards.size(); ++u)
            if (mesh_.counts_shards(*layout_[u].places.front().parameter))
                counted.push_back(shards[u]);
        ops::accumulate_sum_squares(sum, counted);
        mesh_.group({"dp", "cp", "ep", "pp", "tp"}).all_reduce(sum);
        return sum;
    }
    // What some units sum over other groups besides: after the last backward, as in gradients.h.
    void sum_besides(const std::vector<Tensor>& shards) const {
        for (size_t u = 0; u < shards.size(); ++u)
            for (const std::string& group : layout_[u].places.front().parameter->also_summed_over) {
                const TraceName name = name_of(u);
                mesh_.group(group).all_reduce(shards[u]);
            }
    }
    TrainingState resume() {
        std::vector<AdamW*> all;
        for (AdamW& optimizer : optimizers_) all.push_back(&optimizer);
        return resume_or_start(options_, all, parameters_.buffers());
    }
    // Counts the gradients of a unit's flat tensor that are complete in this micro-batch; true at
    // the last one.
    bool unit_complete(const Parameter& parameter) {
        const size_t unit = layout_.flat_of(parameter);
        if (complete_.empty()) complete_.resize(layout_.size());
        if (++complete_[unit] < layout_[unit].places.size()) return false;
        complete_[unit] = 0;
        return true;
    }

    ParameterList& parameters_;
    std::vector<const Unit*> units_;
    const Mesh& mesh_;
    const Options& options_;
    ZeroOptions zero_;
    FlatLayout layout_;
    std::vector<AdamW> optimizers_;    // one, or one for each unit's shard
    bool first_ = true, last_ = true;  // micro-batch of the step

private:
    std::vector<size_t> complete_;  // of each unit
};

}  // namespace ultrascale
