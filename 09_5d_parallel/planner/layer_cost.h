// The time of one rank for a layer, or for the head, and one micro-batch: products by their shape,
// attention, operations limited by memory, and the communication that it waits for (layer_calls.h).
//
//     forward    products  [q k v] (h -> (H + 2 K) D / tp)   [o]   [gate up] (h -> 2 F / tp) [down]
//                attention 4 B T s H D / (tp) FLOPs, of which the mask leaves half, a window
//                          less (share_seen)
//                memory    norms, residuals, rotation, SwiGLU
//     backward   each product twice (dX, dW), attention 2.5 times, memory twice
#pragma once

#include "layer_calls.h"

namespace ultrascale::five_d {

class LayerCosts {
public:
    LayerCosts(const StepShape& shape, const Hardware& hardware, const Plan& plan)
        : c_(shape.config),
          hw_(hardware),
          plan_(plan),
          calls_(shape, hardware, plan),
          e_(double(dtype_bytes(shape.model.dtype))),
          seq_(shape.seq),
          tokens_(double(plan.micro_batch) * double(shape.seq) / double(plan.cp)),
          tp_(double(plan.tp)),
          stream_(tokens_ / (plan.tensor.sequence_parallel ? tp_ : 1) * double(c_.hidden) * e_) {}

    // Returns the cost of one layer and one micro-batch.
    UnitCost layer(bool with_experts) const {
        UnitCost cost;
        for_each_part(with_experts, [&](const char*, const UnitCost& part) { cost += part; });
        if (plan_.recompute == Recompute::full) cost.backward += cost.forward;
        return cost;
    }
    // Calls see(name, cost) for all that one layer computes and waits for, in the forward's order,
    // without recomputation.
    template <class See>
    void for_each_part(bool with_experts, const See& see) const {
        const double h = double(c_.hidden), q = double(c_.q_size()) / tp_,
                     kv = std::max(double(c_.kv_size()) / tp_, double(c_.head_dim));
        see("q, k, v", linear(tokens_, q + 2 * kv, h));
        const double attention = 4 * tokens_ * double(seq_) * q * share_seen(c_, seq_);
        UnitCost attended;
        attended.forward.compute = attention / (hw_.peak * hw_.attention_forward);
        attended.backward.compute = 2.5 * attention / (hw_.peak * hw_.attention_backward);
        see("attention", attended);
        see("o", linear(tokens_, h, q));
        UnitCost context;
        calls_.add_context(context, attended.forward.compute, attended.backward.compute, kv);
        see("cp", context);
        // Norms read and write the stream; residuals read two streams and write one; q and k are
        // rotated. The backward of each also reads what forward wrote.
        const double moved = 10 * stream_ + 4 * tokens_ * (q + kv) * e_;
        UnitCost memory;
        memory.forward.compute = hw_.moved(moved, 6);
        memory.backward.compute = hw_.moved(2 * moved, 10);
        see("norms, residuals, rotation", memory);
        if (with_experts) {
            UnitCost experts;
            add_experts(experts);
            see("experts", experts);
        } else {
            const double F = double(c_.ffn) / tp_;
            see("gate, up", linear(tokens_, 2 * F, h));
            see("SwiGLU", swiglu(tokens_ * F));
            see("down", linear(tokens_, h, F));
        }
        UnitCost regions;
        calls_.add_regions(regions, with_experts);
        see("tp", regions);
    }
    // The turns of both passes of so many layers with experts, if they run beside another
    // micro-batch's: attention, then, when the rows are there, the experts (together.h in 05).
    StageTurns turns(int64_t layers) const {
        const UnitCost whole = layer(true);
        UnitCost experts;
        add_experts(experts);
        const double forward = whole.forward.all() - experts.forward.all(),
                     backward = whole.backward.all() - experts.backward.all();  // attention's
        StageTurns turns;
        turns.forward.transfer = experts.forward.experts / 2;
        turns.backward.transfer = experts.backward.experts / 2;
        turns.backward.compute.push_back(0);
        for (int64_t i = 0; i < layers; ++i) {
            for (const double turn : {forward, experts.forward.compute})
                turns.forward.compute.push_back(turn);
            for (const double turn : {experts.backward.compute, backward})
                turns.backward.compute.push_back(turn);
        }
        turns.forward.compute.push_back(0);
        return turns;
    }
    UnitCost embedding() const {
        UnitCost cost;
        calls_.add_embedding(cost);
        return cost;
    }
    // The final norm, the output head and the loss. Two thirds of the loss's traffic are forward's.
    UnitCost head() const {
        const double V = double(c_.vocab) / tp_;
        UnitCost cost = product(tokens_, V, double(c_.hidden));
        cost.forward.compute += hw_.moved(tokens_ * V * hw_.logit_bytes * 2 / 3 + 4 * stream_, 5);
        cost.backward.compute += hw_.moved(tokens_ * V * hw_.logit_bytes / 3 + 8 * stream_, 5);
        calls_.add_head(cost);
        return cost;
    }
    std::vector<double> messages() const { return calls_.messages(); }

private:
    // Returns the cost of `rows` rows times a weight (N, K): y forward; dX and dW backward.
    UnitCost product(double rows, double N, double K, double grouped = 1) const {
        UnitCost cost;
        cost.forward.compute = hw_.product(rows, N, K, grouped);
        cost.backward.compute = hw_.product(rows, K, N, grouped) + hw_.product(N, K, rows, grouped);
        return cost;
    }
    // Returns the cost of a layer's linear. In fp8 each matrix is read twice, to find its largest
    // number and to be rounded, and written in 8 bits: x and W forward; dy, in both orientations, x
    // and W backward.
    UnitCost linear(double rows, double N, double K, double grouped = 1) const {
        UnitCost cost = product(rows, N, K, grouped);
        if (plan_.fp8) {
            cost.forward.compute /= hw_.fp8_times, cost.backward.compute /= hw_.fp8_times;
            const double x = rows * K * grouped, dy = rows * N * grouped, W = N * K * grouped;
            cost.forward.compute += hw_.moved((x + W) * (2 * e_ + 1), 4);
            cost.backward.compute += hw_.moved((x + W) * (2 * e_ + 1) + dy * (2 * e_ + 2), 6);
        }
        cost.forward.compute += hw_.operation, cost.backward.compute += 2 * hw_.operation;
        return cost;
    }
    UnitCost swiglu(double numbers) const {
        UnitCost cost;
        cost.forward.compute = hw_.moved(3 * numbers * e_, 1);
        cost.backward.compute = hw_.moved(6 * numbers * e_, 2);
        return cost;
    }
    // Adds the experts. Ranks of tp route their own tokens; a rank's E / ep experts get all ranks'
    // rows.
    void add_experts(UnitCost& cost) const {
        const ExpertsConfig& e = c_.experts;
        const double h = double(c_.hidden), F = double(e.ffn), own = double(e.count / plan_.ep),
                     routed = tokens_ / tp_, rows = routed * double(e.router.top_k);
        cost += linear(rows / own, 2 * F, h, own);
        cost += linear(rows / own, h, F, own);
        cost += swiglu(rows * F);
        if (e.shared > 0) {
            const double shared = double(e.shared) * F;
            cost += linear(routed, 2 * shared, h);
            cost += linear(routed, h, shared);
            cost += swiglu(routed * shared);
        }
        const double sorted = 4 * rows * h * e_ + routed * double(e.count) * 12;
        cost.forward.compute += hw_.moved(sorted, 8), cost.backward.compute += hw_.moved(sorted, 8);
        calls_.add_experts(cost, std::llround(routed));
    }
    const LlamaConfig& c_;
    const Hardware& hw_;
    const Plan& plan_;
    LayerCalls calls_;
    double e_;       // bytes of a number
    int64_t seq_;    // tokens of a sequence
    double tokens_;  // of a micro-batch, on a rank of cp
    double tp_;
    double stream_;  // bytes of a rank's part of the residual stream
};

}  // namespace ultrascale::five_d
