// Where stages 2 and 3 have whole gradients: a unit's in a buffer, from the beginning of its
// backward until it has been reduced; of all the rest, a shard of the sum. The reduce-scatters
// themselves are in the stages' files.
//
// At most two units' buffers exist at a time: constant buffers, whatever the depth of the model
// (ZeRO-R's C_B). A tied embedding's gradient is the exception: the head begins it and the
// embedding, last of all, completes it.
#pragma once

#include <vector>

#include "comm/comm.h"
#include "core/ops.h"
#include "core/trace.h"
#include "flat_layout.h"

namespace ultrascale {

class GradientBuffers {
public:
    // Of each unit a shard, which is zero at first; begin_step() forgets what is in it.
    std::vector<Tensor> allocate_shards(const FlatLayout& layout, DType dtype) {
        layout_ = &layout, dtype_ = dtype;
        buffers_.resize(layout.size());
        complete_.resize(layout.size());
        for (size_t u = 0; u < layout.size(); ++u)
            shards_.push_back(Tensor::zeros({layout[u].shard}, dtype, Memory::gradient));
        return shards_;
    }
    void begin_step() { reduced_.assign(buffers_.size(), false); }

    // Before a unit's backward its gradients need a place, a tied head's also in the embedding.
    void make_room(const Unit& unit, Pass pass) {
        if (pass == Pass::forward && !unit.gradients_in_forward) return;
        for (size_t u : layout_->flats_of(unit)) {
            if (buffers_[u]) continue;
            const FlatUnit& flat = (*layout_)[u];
            const TraceName name(TraceName::whole, flat.unit->name);
            buffers_[u] = Tensor::empty({flat.padded}, dtype_, Memory::communication);
            // The padding, which is reduced and counted too.
            ops::fill(buffers_[u].slice(flat.numel, flat.padded), 0);
            layout_->place(u, buffers_[u], &Parameter::grad);
            for (const FlatUnit::Place& place : flat.places) place.parameter->has_grad = false;
        }
    }
    // A unit's gradients are reduced after the pass that brings as many complete ones as it has
    // parameters. With several micro-batches under way these may be of two of them; what is in the
    // buffer then is sent, and no contribution is sent twice.
    void complete(const Parameter& parameter) { ++complete_[layout_->flat_of(parameter)]; }
    std::vector<size_t> take_complete(const Unit& unit) {
        std::vector<size_t> all;
        for (size_t u : layout_->flats_of(unit)) {
            const size_t parameters = (*layout_)[u].places.size();
            if (complete_[u] < parameters) continue;
            complete_[u] -= parameters;
            all.push_back(u);
        }
        return all;
    }
    // At a micro-batch's end: what another order of passes has left.
    std::vector<size_t> take_rest() {
        std::vector<size_t> all;
        for (size_t u = 0; u < buffers_.size(); ++u)
            if (buffers_[u]) all.push_back(u), complete_[u] = 0;
        return all;
    }

    // What to reduce, and where the sum of this rank's shard goes: a step's first sum is the shard;
    // the others are added when they have arrived.
    struct Reduction {
        size_t unit;
        Tensor whole;  // (padded)
        Tensor sum;    // (shard)
        bool add;      // to the shard; or it is the shard
        Work work;
    };
    Reduction take(size_t u) {
        for (const FlatUnit::Place& place : (*layout_)[u].places)
            if (!place.parameter->has_grad) place.parameter->begin_contribution_in_place();  // zero
        const bool add = reduced_[u];
        reduced_[u] = true;
        return {.unit = u,
                .whole = buffers_[u],
                .sum = add ? Tensor::empty({(*layout_)[u].shard}, dtype_, Memory::communication)
                           : shards_[u],
                .add = add,
                .work = {}};
    }
    // The communication owns the buffer now. One reduction runs under what follows; the one before
    // it has arrived.
    void under_way(Reduction reduction) {
        layout_->place(reduction.unit, {}, &Parameter::grad);
        buffers_[reduction.unit] = reduction.whole = {};
        under_way_.push_back(std::move(reduction));
        wait(1);
    }
    // For all but the latest `left` reductions, which lets go of their buffers.
    void wait(size_t left) {
        while (under_way_.size() > left) {
            Reduction& oldest = under_way_.front();
            const TraceName name(TraceName::whole, (*layout_)[oldest.unit].unit->name);
            oldest.work.wait();
            if (oldest.add) ops::add(shards_[oldest.unit], oldest.sum);
            under_way_.erase(under_way_.begin());
        }
    }

private:
    const FlatLayout* layout_ = nullptr;
    DType dtype_ = DType::fp32;
    std::vector<Tensor> shards_;   // of each unit: its sum (shard)
    std::vector<Tensor> buffers_;  // of each unit that is in backward: its whole gradient (padded)
    std::vector<Reduction> under_way_;
    std::vector<size_t> complete_;  // of each unit: gradients complete since it was last reduced
    std::vector<bool> reduced_;     // of each unit: whether a sum of this step is in its shard
};

}  // namespace ultrascale
