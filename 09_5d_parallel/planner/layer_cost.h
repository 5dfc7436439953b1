// What one rank takes for a layer, or for the head, of one micro-batch: products by their shape,
// attention, what is limited by memory, and the communication inside the layer that nothing hides.
//
//     forward    products  [q k v] (h -> (H + 2 K) D / tp)   [o]   [gate up] (h -> 2 F / tp) [down]
//                attention 2 B T s H D / (tp) FLOPs (half of the scores are masked)
//                memory    norms, residuals, rotation, SwiGLU
//     backward   each product twice (dX, dW), attention 2.5 times, memory twice
//     tp         4 tensors of (tokens, h) forward and 6 backward, gathered or scattered (03)
//     cp         keys and values round the ring, under attention; whatever is longer counts (04)
//     ep         rows there and back (06)
#pragma once

#include "hardware.h"
#include "plan.h"

namespace ultrascale {

// Seconds of a pass, by what they go into; of communication only what is waited for.
struct PassCost {
    double compute = 0, tensor = 0, context = 0, experts = 0;
    double all() const { return compute + tensor + context + experts; }
    PassCost& operator+=(const PassCost& o) {
        compute += o.compute, tensor += o.tensor, context += o.context, experts += o.experts;
        return *this;
    }
    PassCost operator*(double n) const {
        return {compute * n, tensor * n, context * n, experts * n};
    }
};
struct UnitCost {
    PassCost forward, backward;
    double both() const { return forward.all() + backward.all(); }
    UnitCost& operator+=(const UnitCost& o) {
        forward += o.forward, backward += o.backward;
        return *this;
    }
    UnitCost operator*(double n) const { return {forward * n, backward * n}; }
};

class LayerCosts {
public:
    LayerCosts(const StepShape& shape, const Hardware& hardware, const Plan& plan)
        : c_(shape.config),
          hw_(hardware),
          plan_(plan),
          e_(double(dtype_bytes(shape.model.dtype))),
          seq_(double(shape.seq)),
          tokens_(double(plan.micro_batch) * double(shape.seq) / double(plan.cp)),
          tp_(double(plan.tp)),
          stream_(tokens_ / tp_ * double(c_.hidden) * e_) {}

    // One layer, of one micro-batch.
    UnitCost layer(bool with_experts) const {
        const double h = double(c_.hidden), q = double(c_.q_size()) / tp_,
                     kv = std::max(double(c_.kv_size()) / tp_, double(c_.head_dim));
        UnitCost cost = linear(tokens_, q + 2 * kv, h);
        cost += linear(tokens_, h, q);
        const double attention = 2 * tokens_ * seq_ * q;
        const double attended = attention / (hw_.peak * hw_.attention_forward),
                     back = 2.5 * attention / (hw_.peak * hw_.attention_backward);
        cost.forward.compute += attended, cost.backward.compute += back;
        // Norms read and write the stream, residuals read two and write one; q and k are rotated.
        // The backward of each reads what forward wrote, besides.
        const double moved = 10 * stream_ + 4 * tokens_ * (q + kv) * e_;
        cost.forward.compute += hw_.moved(moved, 6),
            cost.backward.compute += hw_.moved(2 * moved, 10);
        if (with_experts) {
            add_experts(cost);
        } else {
            const double F = double(c_.ffn) / tp_;
            cost += linear(tokens_, 2 * F, h);
            cost += linear(tokens_, h, F);
            cost += swiglu(tokens_ * F);
        }
        add_tensor(cost, with_experts);
        add_context(cost, attended, back, kv);
        if (plan_.recompute == Recompute::full) cost.backward += cost.forward;
        return cost;
    }
    // The final norm, the output head and the loss: two thirds of what it moves are forward's.
    UnitCost head() const {
        const double V = double(c_.vocab) / tp_;
        UnitCost cost = product(tokens_, V, double(c_.hidden));
        cost.forward.compute += hw_.moved(tokens_ * V * hw_.logit_bytes * 2 / 3 + 4 * stream_, 5);
        cost.backward.compute += hw_.moved(tokens_ * V * hw_.logit_bytes / 3 + 8 * stream_, 5);
        if (plan_.tp > 1) {
            cost.forward.tensor += tensor_calls(1, 0);
            cost.backward.tensor += tensor_calls(1, 1);
        }
        return cost;
    }
    // Seconds of a message between two stages: a rank's part of the stream.
    double hop() const {
        return plan_.pp == 1
                   ? 0
                   : hw_.call(Collective::send_recv, stream_, 2, double(plan_.stride_of_pp()));
    }

private:
    // The products of `rows` rows with a weight (N, K): y forward; dX and dW backward.
    UnitCost product(double rows, double N, double K, double grouped = 1) const {
        UnitCost cost;
        cost.forward.compute = hw_.product(rows, N, K, grouped);
        cost.backward.compute = hw_.product(rows, K, N, grouped) + hw_.product(N, K, rows, grouped);
        return cost;
    }
    // A layer's linear. In fp8 each matrix is read twice, for its largest number and to be rounded,
    // and written in 8 bits: x and W forward; dy, in both orientations, x and W backward.
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
    // Each routes its own of tp's tokens; its rows come to E / ep experts of every rank.
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
        const double exchange = 2 * hw_.call(Collective::all_to_all, rows * h * e_,
                                             double(plan_.ep), double(plan_.stride_of_ep()));
        cost.forward.experts += exchange, cost.backward.experts += exchange;
    }
    // Seconds, of what is not hidden, of so many all-gathers and reduce-scatters of the stream.
    double tensor_calls(double gathers, double scatters) const {
        return (1 - hw_.tensor_hidden) *
               (gathers * hw_.call(Collective::all_gather, stream_ * tp_, tp_, 1) +
                scatters * hw_.call(Collective::reduce_scatter, stream_ * tp_, tp_, 1));
    }
    void add_tensor(UnitCost& cost, bool with_experts) const {
        if (plan_.tp == 1) return;
        // With experts, whose tokens are dealt out already, attention's region only.
        const double regions = with_experts ? 1 : 2;
        cost.forward.tensor += tensor_calls(regions, regions);
        cost.backward.tensor += tensor_calls(2 * regions, regions);
    }
    // K and V to all ranks, and back with their gradients, in fp32: 04's formulas. A ring hides
    // them under attention, which they slow; an all-gather under nothing.
    void add_context(UnitCost& cost, double attended, double back, double kv) const {
        if (plan_.cp == 1) return;
        const double n = double(plan_.cp), kv_bytes = 2 * tokens_ * kv * e_;
        const LinkRate rate = hw_.link(n, double(plan_.stride_of_cp()));
        const auto seconds = [&](double bytes) {
            return (n - 1) * (bytes / rate.bytes_per_second + rate.latency);
        };
        const double there = seconds(kv_bytes), home = seconds(kv_bytes + kv_bytes * 4 / e_);
        const double share = plan_.gathers_keys ? 0 : (n - 1) / n;  // of attention, that hides it
        // A ring merges a partial output, and adds up gradients, in fp32 after every hop.
        if (!plan_.gathers_keys) {
            const double q = double(c_.q_size()) / tp_;
            cost.forward.compute += hw_.moved((n - 1) * tokens_ * q * (8 + e_), 4 * (n - 1));
            cost.backward.compute += hw_.moved((n - 1) * tokens_ * (q + 2 * kv) * 12, 8 * (n - 1));
        }
        const auto seen = [&](double hops, double under) {
            const double waited_for = std::max(hops - under, 0.0);
            return waited_for + rate.message_slows * (hops - waited_for);
        };
        cost.forward.context += seen(there, share * attended);
        cost.backward.context += seen(home, share * back);
    }

    const LlamaConfig& c_;
    const Hardware& hw_;
    const Plan& plan_;
    double e_;       // bytes of a number
    double seq_;     // tokens of a sequence
    double tokens_;  // of a micro-batch on a rank of cp
    double tp_;
    double stream_;  // bytes of a rank's part of the residual stream
};

}  // namespace ultrascale
