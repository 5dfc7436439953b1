// With documents (3_documents.h) the data decide what travels round the ring, what a rank holds
// meanwhile, and how well the work is balanced. So a run's predictions are added up from the plans
// of its batches, micro-batch by micro-batch.
#pragma once

#include "predict.h"
#include "ring_work.h"

namespace ultrascale::context_parallel {

// What a rank sends and receives in one pass round the ring (keys and values, or their gradients),
// in tokens of a KV chunk. `calls`: the hops at which it sends or receives.
struct RingTraffic {
    int64_t calls = 0, tokens = 0;
};
inline RingTraffic traffic_of_keys(const RingPlan& plan, int rank) {
    RingTraffic traffic;
    for (int hop = 0; hop <= plan.last_hop(); ++hop) {
        bool any = false;
        for (size_t p = 0; p < plan.kv_chunks(); ++p) {
            const bool sends = plan.goes_on(p, rank, hop);
            traffic.tokens += sends ? plan.tokens(p) : 0;
            any = any || sends || plan.owner(p, rank, hop + 1) != RingPlan::none;
        }
        traffic.calls += any;
    }
    return traffic;
}
// Gradients follow their keys, and go home at the end.
inline RingTraffic traffic_of_gradients(const RingPlan& plan, int rank) {
    RingTraffic traffic;
    for (int hop = 0; hop <= plan.last_hop(); ++hop) {
        bool any = false;
        for (size_t p = 0; p < plan.kv_chunks(); ++p) {
            const int owner = plan.owner(p, rank, hop);
            const bool sends =
                owner != RingPlan::none && (plan.goes_on(p, rank, hop) || owner != rank);
            const bool comes_home = plan.hops(p, rank) == hop && plan.end(p, rank) != rank;
            traffic.tokens += sends ? plan.tokens(p) : 0;
            any = any || sends || comes_home || plan.owner(p, rank, hop + 1) != RingPlan::none;
        }
        traffic.calls += any;
    }
    return traffic;
}

// Returns what a rank sends round the ring for a micro-batch, in a layer's forward and backward.
inline PredictedCommunication::Kind ring_of_layer(const StepShape& shape, const ContextOptions& o,
                                                  const RingPlan& plan, int rank) {
    const AttentionBytes bytes(shape, o);
    const int64_t tokens = shape.seq / o.ring_degree(),  // of a rank
        forwards = shape.model.recompute == Recompute::full ? 2 : 1;
    PredictedCommunication::Kind ring;
    const auto add = [&](const RingTraffic& pass, int64_t passes, double all_tokens_bytes) {
        ring.calls += passes * pass.calls;
        const int64_t sent = passes * int64_t(all_tokens_bytes) / tokens * pass.tokens;
        ring.bytes += sent, ring.sent += double(sent);
    };
    add(traffic_of_keys(plan, rank), forwards + 1, bytes.kv);
    add(traffic_of_gradients(plan, rank), 1, bytes.sums);
    return ring;
}

class DocumentCounts : public Hooks {
public:
    DocumentCounts(const StepShape& shape, const ContextOptions& o, ContextParallel& parallel)
        : shape_(shape), options_(o), parallel_(parallel) {}

    void before(const Unit& unit, Pass pass, const Context& context) override {
        if (unit.name != "embedding" || pass != Pass::forward || !context.batch.whole) return;
        count_balance(*context.batch.whole);
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
    // its busiest rank. Prints nothing without documents.
    void print_balance(Report& report) const {
        if (balance_.empty()) return;
        std::string line = "  balance with these documents, attended pairs of a rank, mean / most:";
        for (const auto& [layout, sum] : balance_) {
            line += fmt::format("\n    {:<28} {:.3f}", layout, sum.efficiency());
            report.value("balance", layout, sum.efficiency());
        }
        print(line);
    }

private:
    void count_ring(const RingPlan& plan) {
        const int rank = parallel_.ring_rank();
        ring_ += ring_of_layer(shape_, options_, plan, rank).times(shape_.config.layers);
        const AttentionMemory m = attention_memory(shape_, options_, plan, rank);
        memory_.kept = m.kept;
        memory_.forward = std::max(memory_.forward, m.forward);
        memory_.backward = std::max(memory_.backward, m.backward);
        memory_.communication = std::max(memory_.communication, m.communication);
    }
    void count_balance(const HostBatch& whole) {
        const int64_t seq = whole.length, ranks = options_.cp;
        for (int64_t b = 0; b < whole.sequences; ++b) {
            const int32_t* starts = whole.document_starts.data() + b * seq;
            const auto add = [&](const std::string& layout, const std::vector<double>& pairs) {
                const Balance sequence_balance = balance_of(pairs);
                balance_[layout].mean += sequence_balance.mean;
                balance_[layout].most += sequence_balance.most;
            };
            for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped})
                if (seq % SequenceCut::multiple(layout, ranks) == 0)
                    add(layout_names[int(layout)],
                        pairs_by_rank(SequenceCut(layout, ranks, seq), starts));
            add("zigzag within each document", pairs_by_document_zigzag(ranks, seq, starts));
        }
    }

    StepShape shape_;
    ContextOptions options_;
    ContextParallel& parallel_;
    PredictedCommunication::Kind ring_;
    AttentionMemory memory_;
    std::map<std::string, Balance> balance_;  // sums over sequences
};

}  // namespace ultrascale::context_parallel
