// --stage 2: the gradients are sharded too. A unit's whole gradient exists only from the beginning
// of its backward until it has been
// reduced; what stays is the shard of the sum. With several micro-batches each one's gradients must
// therefore travel.
//
//     compute         backward L8          backward L7          backward L6
//     communication                        reduce-scatter L8    reduce-scatter L7
//     gradients held  [L8]                 [L8][L7]             [L7][L6]             and 1/n of everything
//
// At most two units' gradients exist at a time: constant buffers, whatever the depth of the model
// (ZeRO-R's C_B). A tied embedding's gradient is the exception: the head begins it and the
// embedding, last of all, completes it.
#pragma once

#include "zero1.h"

namespace ultrascale {

class Zero2 : public Zero1 {
public:
    using Zero1::Zero1;

    TrainingState start() override {
        buffers_.resize(layout_.size());
        complete_.resize(layout_.size());
        return Zero1::start();
    }
    void begin_step(int64_t) override {  // a sum is of one micro-batch
        parameters_.begin_gradients();
        reduced_.assign(layout_.size(), false);
    }

    void before(const Unit& unit, Pass pass, const Context& context) override {
        Zero1::before(unit, pass, context);
        make_room_for_gradients(unit, pass);
    }
    // A unit's gradients are reduced after the pass that brings as many complete ones as it has
    // parameters. With several micro-batches under way these may be of two of them; what is in the
    // buffer then is sent, and no contribution is sent twice.
    void gradient_complete(Parameter& parameter, const Context&) override {
        ++complete_[layout_.flat_of(parameter)];
    }
    void after(const Unit& unit, Pass, const Context&) override {
        for (size_t u : layout_.flats_of(unit)) {
            if (complete_[u] < layout_[u].places.size()) continue;
            complete_[u] -= layout_[u].places.size();
            reduce(u);
        }
    }
    void end_micro_batch() override {
        parameters_.check_complete();
        for (size_t u = 0; u < layout_.size(); ++u)
            if (buffers_[u]) reduce(u), complete_[u] = 0;  // what another order of passes has left
        retire(0);
    }

protected:
    void allocate_gradients() override {
        for (size_t u = 0; u < layout_.size(); ++u)
            grad_shards_.push_back(
                Tensor::zeros({layout_[u].shard}, options_.grad_dtype(), Memory::gradient));
    }
    // Before a unit's backward its gradients need a place, a tied head's also in the embedding.
    void make_room_for_gradients(const Unit& unit, Pass pass) {
        if (pass == Pass::forward && !unit.gradients_in_forward) return;
        for (size_t u : layout_.flats_of(unit)) {
            if (buffers_[u]) continue;
            const TraceName name = name_of(u);
            buffers_[u] =
                Tensor::empty({layout_[u].padded}, options_.grad_dtype(), Memory::communication);
            ops::fill(buffers_[u].slice(layout_[u].numel, layout_[u].padded),
                      0);  // the padding, which is reduced and counted too
            layout_.place(u, buffers_[u], &Parameter::grad);
            for (const FlatUnit::Place& place : layout_[u].places)
                place.parameter->has_grad = false;
        }
    }

private:
    void reduce(size_t u) {
        const TraceName name = name_of(u);
        for (const FlatUnit::Place& place : layout_[u].places)
            if (!place.parameter->has_grad) place.parameter->begin_contribution_in_place();  // zero
        // A step's first sum is the shard; the others are added when they have arrived.
        const bool add = reduced_[u];
        reduced_[u] = true;
        const Tensor sum = add ? Tensor::empty({layout_[u].shard}, options_.grad_dtype(),
                                               Memory::communication)
                               : grad_shards_[u];
        under_way_.push_back({u, sum, add,
                              ranks_of(u).reduce_scatter(sum, buffers_[u], Reduce::sum,
                                                         communication_stream())});
        layout_.place(u, {}, &Parameter::grad);
        buffers_[u] = {};  // the communication owns it now
        retire(1);
    }
    struct Reduction {
        size_t unit;
        Tensor sum;  // (shard)
        bool add;    // to the shard; or it is the shard
        Work work;
    };
    // Waits for all but the latest `left` reductions, which lets go of their buffers.
    void retire(size_t left) {
        while (under_way_.size() > left) {
            Reduction& oldest = under_way_.front();
            const TraceName name = name_of(oldest.unit);
            oldest.work.wait();
            if (oldest.add) ops::add(grad_shards_[oldest.unit], oldest.sum);
            under_way_.erase(under_way_.begin());
        }
    }

    std::vector<Tensor> buffers_;  // of each unit that is in backward: its whole gradient (padded)
    std::vector<Reduction> under_way_;
    std::vector<size_t> complete_;  // of each unit: gradients complete since it was last reduced
    std::vector<bool> reduced_;     // of each unit: whether a sum of this step is in its shard
};

}  // namespace ultrascale
