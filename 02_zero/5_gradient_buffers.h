// In stages 2 and 3 a unit's whole gradient exists only in a buffer, from the beginning of its
// backward until it has been reduced; what stays of each unit is a shard of the sum. The
// reduce-scatters themselves are in the stages' files.
//
// At most two units' buffers exist at a time, however deep the model is (ZeRO-R's constant buffers,
// C_B). A tied embedding's gradient is the exception: the head begins it and the embedding, last of
// all, completes it.
#pragma once

#include <functional>
#include <vector>

#include "2_flat_layout.h"
#include "comm/comm.h"
#include "core/ops.h"
#include "core/trace.h"

namespace ultrascale::zero {

class GradientBuffers {
public:
    // Allocates each unit's shard, filled with zeros. After begin_step() the first sum of the step
    // overwrites it.
    std::vector<Tensor> allocate_shards(const FlatLayout& layout, DType dtype) {
        layout_ = &layout, dtype_ = dtype;
        buffers_.resize(layout.size());
        complete_.resize(layout.size());
        for (size_t u = 0; u < layout.size(); ++u)
            shards_.push_back(Tensor::zeros({layout[u].shard}, dtype, Memory::gradient));
        return shards_;
    }
    void begin_step() { reduced_.assign(buffers_.size(), false); }

    // Gives a unit's gradients a buffer before the pass that adds to them. A tied head also adds to
    // the embedding's gradient, so it needs the embedding's buffer too.
    void make_room(const Unit& unit, Pass pass) {
        if (pass == Pass::forward && !unit.gradients_in_forward) return;
        for (size_t u : layout_->flats_of(unit)) {
            if (buffers_[u]) continue;
            const FlatUnit& flat = (*layout_)[u];
            const TraceName name(TraceName::whole, flat.name);
            buffers_[u] = Tensor::empty({flat.padded}, dtype_, Memory::communication);
            // The padding is reduced, too, and enters the norm.
            ops::fill(buffers_[u].slice(flat.numel, flat.padded), 0);
            layout_->bind(u, buffers_[u], &Parameter::grad);
            for (const FlatUnit::Segment& segment : flat.segments)
                segment.parameter->has_grad = false;
        }
    }
    // A unit is reduced after the pass in which as many of its gradients have become complete as it
    // has parameters. If several micro-batches are in flight (a pipeline), those gradients may come
    // from two of them: then whatever the buffer holds by then is sent. Every contribution is sent
    // exactly once.
    void complete(const Parameter& parameter) { ++complete_[layout_->flat_of(parameter)]; }
    std::vector<size_t> take_complete(const Unit& unit) {
        std::vector<size_t> all;
        for (size_t u : layout_->flats_of(unit)) {
            const size_t parameters = (*layout_)[u].segments.size();
            if (complete_[u] < parameters) continue;
            complete_[u] -= parameters;
            all.push_back(u);
        }
        return all;
    }
    // Returns, at the end of a micro-batch, the units that have a buffer but were not reduced after
    // a pass, because the passes came in another order (a pipeline).
    std::vector<size_t> take_rest() {
        std::vector<size_t> all;
        for (size_t u = 0; u < buffers_.size(); ++u)
            if (buffers_[u]) all.push_back(u), complete_[u] = 0;
        return all;
    }

    // A reduce-scatter that is to be started. The first one of a step writes its sum straight into
    // this rank's shard. Those of later micro-batches write to a tensor of their own, which wait()
    // adds.
    struct Reduction {
        size_t unit;
        Tensor whole;  // (padded) the input: all of the unit's gradient
        Tensor sum;    // (shard) the output: the shard itself, or a tensor to be added to it
        bool add;      // whether `sum` must still be added to the shard
        Work work;
        std::function<void()> arrived = {};  // makes the sum of what has come (8_narrow.h)
        std::function<void()> then = {};     // called when it is in the shard
    };
    Reduction take(size_t u) {
        for (const FlatUnit::Segment& segment : (*layout_)[u].segments)
            if (!segment.parameter->has_grad)
                segment.parameter->begin_contribution_in_place();  // zero
        const bool add = reduced_[u];
        reduced_[u] = true;
        return {.unit = u,
                .whole = buffers_[u],
                .sum = add ? Tensor::empty({(*layout_)[u].shard}, dtype_, Memory::communication)
                           : shards_[u],
                .add = add,
                .work = {}};
    }
    // Hands the buffer over to a reduction that has been started. At most one reduction overlaps
    // with the computation that follows: this call waits for the previous one, and so frees its
    // buffer.
    void under_way(Reduction reduction) {
        layout_->bind(reduction.unit, {}, &Parameter::grad);
        buffers_[reduction.unit] = reduction.whole = {};
        under_way_.push_back(std::move(reduction));
        wait(1);
    }
    // Waits, oldest first, until at most `left` reductions are in flight. Adds results to their
    // shards where that is needed, and frees their buffers.
    void wait(size_t left) {
        while (under_way_.size() > left) {
            Reduction& oldest = under_way_.front();
            const TraceName name(TraceName::whole, (*layout_)[oldest.unit].name);
            oldest.work.wait();
            if (oldest.arrived) oldest.arrived();
            if (oldest.add) ops::add(shards_[oldest.unit], oldest.sum);
            if (oldest.then) oldest.then();
            under_way_.erase(under_way_.begin());
        }
    }

private:
    const FlatLayout* layout_ = nullptr;
    DType dtype_ = DType::fp32;
    std::vector<Tensor> shards_;   // of each unit: the sum (shard)
    std::vector<Tensor> buffers_;  // of each unit that is in backward: its whole gradient (padded)
    std::vector<Reduction> under_way_;
    std::vector<size_t> complete_;  // of each unit: gradients complete since it was last reduced
    std::vector<bool> reduced_;     // of each unit: whether a sum of this step is in its shard
};

}  // namespace ultrascale::zero
