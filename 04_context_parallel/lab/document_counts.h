// With documents (3_documents.h) the data decide what travels round the ring, what a rank holds
// meanwhile, and how well the work is balanced. So a run's predictions are added up from the plans
// of its batches, micro-batch by micro-batch.
#pragma once

#include "predict.h"
#include "ring_work.h"

namespace ultrascale::context_parallel {

class DocumentCounts : public Hooks {
public:
    DocumentCounts(const StepShape& shape, const ContextOptions& o, ContextParallel& parallel)
        : shape_(shape), options_(o), parallel_(parallel) {}

    void before(const Unit& unit, Pass pass, const Context& context) override {
        if (unit.name != "embedding" || pass != Pass::forward) return;
        if (!context.batch.whole) {
            if (context.batch.prefix > 0 && balance_.empty()) count_balance(nullptr, shape_.seq);
            return;
        }
        const HostBatch& whole = *context.batch.whole;
        for (int64_t b = 0; b < whole.sequences; ++b)
            count_balance(whole.document_starts.data() + b * whole.length, whole.length);
        if (parallel_.has_ring()) count_ring(parallel_.plan_of(context.batch).plan);
    }

    // Replaces what the ring would send and hold without documents by what was counted.
    // `run_prediction` is the prediction for all steps.
    void correct(Prediction& run_prediction) const {
        if (ring_.calls == 0 && memory_.backward == 0) return;
        run_prediction.communication.groups[ring_group(options_)][size_t(Collective::send_recv)] =
            ring_;
        LocalSizes sizes = local_sizes(shape_, options_);
        sizes.attention_besides = {memory_.kept, memory_.forward, memory_.backward};
        run_prediction.memory.peak_activations = peak_activation_bytes(sizes);
        run_prediction.memory.peak_communication = std::llround(memory_.communication);
    }

    // Prints the balance of all layouts on this replica's samples: each sequence lasts as long as
    // its busiest rank. Prints nothing if the mask is only causal.
    void print_balance(Report& report) const {
        if (balance_.empty()) return;
        std::string line = "  balance with these masks, attended pairs of a rank, mean / most:";
        for (const auto& [layout, sum] : balance_) {
            line += fmt::format("\n    {:<28} {:.3f}", layout, sum.efficiency());
            report.value("balance", layout, sum.efficiency());
        }
        print(line);
    }

private:
    void count_ring(const RingPlan& plan) {
        const int rank = parallel_.ring_rank();
        ring_ += ring_of_layers(shape_, options_, plan, rank,
                                layer_passes(shape_.model.recompute, shape_.config.layers));
        const AttentionMemory m = attention_memory(shape_, options_, plan, rank);
        memory_.kept = m.kept;
        memory_.forward = std::max(memory_.forward, m.forward);
        memory_.backward = std::max(memory_.backward, m.backward);
        memory_.communication = std::max(memory_.communication, m.communication);
    }
    // Of one sequence; starts may be null.
    void count_balance(const int32_t* starts, int64_t seq) {
        const int64_t ranks = options_.cp;
        const SequenceMask mask = mask_of(shape_.config);
        const auto add = [&](const std::string& layout, const std::vector<double>& pairs) {
            const Balance sequence_balance = balance_of(pairs);
            balance_[layout].mean += sequence_balance.mean;
            balance_[layout].most += sequence_balance.most;
        };
        for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
            if (seq % SequenceCut::multiple(layout, ranks) == 0)
                add(layout_names[int(layout)],
                    pairs_by_rank(SequenceCut(layout, ranks, seq, mask), starts));
        if (mask.is_causal())
            add("zigzag within each document", pairs_by_document_zigzag(ranks, seq, starts));
    }

    StepShape shape_;
    ContextOptions options_;
    ContextParallel& parallel_;
    PredictedCommunication::Kind ring_;
    AttentionMemory memory_;
    std::map<std::string, Balance> balance_;  // sums over sequences
};

}  // namespace ultrascale::context_parallel
