// Documents in sequences that context parallelism cuts (04_context_parallel/3_documents.h): the
// data decide what travels round the ring, and what a rank holds meanwhile. So each step's
// micro-batches are watched, and a run's predictions follow from the plans of its batches.
#pragma once

#include "04_context_parallel/lab/document_counts.h"
#include "predict.h"

namespace ultrascale::five_d {

class WatchedDocuments : public Hooks {
public:
    explicit WatchedDocuments(Composition& all) : all_(all) {}
    WatchedDocuments(const WatchedDocuments&) = delete;

    // Notes in a micro-batch's first pass what attention will hold here and what layers will send.
    void before(const Unit&, Pass pass, const Context& context) override {
        const int m = context.micro_batch;
        if (pass != Pass::forward || !context.batch.whole || !all_.context.has_ring() ||
            memory_.contains(m))
            return;
        const RingPlan& plan = all_.context.plan_of(context.batch).plan;
        const int rank = all_.context.ring_rank();
        const ContextOptions& options = all_.context.options();
        memory_[m] = attention_memory(all_.local_heads_shape, options, plan, rank);
        const auto of = [&](const LayerPasses& passes) {
            return ring_of_layers(all_.local_heads_shape, options, plan, rank, passes);
        };
        layer_traffic_[m] = {of({1, 0}), of({0, 1})};
    }
    void end_step() {
        if (memory_.empty()) return;
        for (const Action& action : all_.schedule.actions[size_t(all_.pp().rank())]) {
            const Stage& stage = all_.stages[size_t(all_.own.stage(action.chunk))];
            if (action.kind != ActionKind::forward) continue;
            const LayerPasses passes =
                layer_passes(all_.shape.model.recompute.from(stage.first_layer),
                             stage.last_layer - stage.first_layer);
            const auto& [forward, backward] = layer_traffic_.at(action.micro_batch);
            ring_ += forward.times(passes.forward);
            ring_ += backward.times(passes.backward);
        }
        if (!all_.experts)  // otherwise experts' rows count, too (ExpertRun)
            activations_ = std::max(activations_, peak_activations(all_, {}, memory_));
        buffers_ = std::max(buffers_, peak_buffers(all_, memory_));
        memory_.clear(), layer_traffic_.clear();
    }
    // The memory for the step's micro-batches that have begun on this rank.
    const DocumentMemory& memory() const { return memory_; }
    // Begins to count anew what is sent.
    void clear() { ring_ = {}; }

    // Replaces what the ring would send and hold without documents by what was seen.
    // `run_prediction` is the prediction for all steps.
    void correct(Prediction& run_prediction) const {
        if (buffers_ < 0) return;
        run_prediction.communication
            .groups[ring_group(all_.context.options())][size_t(Collective::send_recv)] = ring_;
        if (!all_.experts) run_prediction.memory.peak_activations = whole_bytes(activations_);
        run_prediction.memory.peak_communication +=
            buffers_ - peak_buffers(all_);  // without documents
    }

private:
    Composition& all_;
    DocumentMemory memory_;
    // Of the step's micro-batches, in a layer's forward and in its backward.
    std::map<int, std::array<PredictedCommunication::Kind, 2>> layer_traffic_;
    PredictedCommunication::Kind ring_;
    double activations_ = 0;
    int64_t buffers_ = -1;
};

}  // namespace ultrascale::five_d
