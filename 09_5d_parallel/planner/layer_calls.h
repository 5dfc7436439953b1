// The time for which one rank waits in a layer, or in the head, for one micro-batch: the
// communication inside the layer that nothing hides.
//
//     tp    with sequence parallelism 4 tensors of (tokens, h) forward and 6 backward, gathered or
//           scattered; without, 2 and 2 summed (03)
//     cp    keys and values round the ring, or as far as a window reaches, under attention;
//           whatever is longer counts. Or they are gathered, or heads exchanged, and nothing hides
//           it (04)
//     ep    rows there and back (06)
//     pp    a message from stage to stage (05)
#pragma once

#include "04_context_parallel/lab/ring_traffic.h"
#include "05_pipeline/2_schedules/together.h"
#include "06_expert_parallel/lab/predict.h"
#include "hardware.h"
#include "plan.h"

namespace ultrascale::five_d {

// Seconds of a pass, by cause; of communication only the part that is waited for.
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

class LayerCalls {
public:
    LayerCalls(const StepShape& shape, const Hardware& hardware, const Plan& plan)
        : c_(shape.config),
          hw_(hardware),
          links_(hardware.links()),
          plan_(plan),
          e_(double(dtype_bytes(shape.model.dtype))),
          seq_(shape.seq),
          tokens_(double(plan.micro_batch) * double(shape.seq) / double(plan.cp)),
          tp_(double(plan.tp)),
          stream_(tokens_ * double(c_.hidden) * e_) {}

    // Adds the calls of attention's and the feed-forward's regions. With experts, whose tokens are
    // dealt out already, only attention's.
    void add_regions(UnitCost& cost, bool with_experts) const {
        const double regions = with_experts ? 1 : 2, gathers = plan_.tensor.keep_gathered ? 1 : 2;
        if (summed()) return add(cost, {.sums = regions}, {.sums = regions});
        add(cost, {.gathers = regions, .scatters = regions},
            {.gathers = gathers * regions, .scatters = regions});
    }

    void add_embedding(UnitCost& cost) const {
        if (summed()) return add(cost, {.sums = 1}, {});
        add(cost, {.scatters = 1}, {.gathers = 1});
    }
    // Adds the calls of the head and of the loss, which gathers three numbers a token from each
    // rank.
    void add_head(UnitCost& cost) const {
        if (plan_.tp == 1) return;
        const double gathers = plan_.tensor.keep_gathered ? 0 : 1;
        summed() ? add(cost, {}, {.sums = 1})
                 : add(cost, {.gathers = 1}, {.gathers = gathers, .scatters = 1});
        cost.forward.tensor +=
            links_.call(Collective::all_gather, 12 * tokens_ * tp_, spread(PlanAxis::tp));
    }
    // Adds the calls that bring K and V to all ranks, and their gradients back in fp32, by 04's
    // formulas. A ring hides them under attention, which it slows; all else is waited for.
    // `attended`, `back`: seconds of a rank's attention without cp, forward and backward; `kv`:
    // features of its keys (K D / tp).
    void add_context(UnitCost& cost, double attended, double back, double kv) const {
        if (plan_.cp == 1) return;
        ContextOptions o = plan_.context;
        o.cp = int(plan_.cp);
        const int64_t u = o.ulysses_degree(), stride = plan_.stride(PlanAxis::cp);
        const double n = o.ring_degree(), heads = std::max(kv / double(c_.head_dim), 1.0),
                     own = 2 * tokens_ * kv * e_,  // K and V
            q = double(c_.q_size()) / tp_, keys = own * std::max(heads, double(u)) / heads,
                     sums = keys * 4 / e_;
        // With one piece of the sequence each, the last rank has the most work: with a causal mask
        // nearly twice the mean, with a window hardly more.
        if (o.layout == Layout::contiguous && n > 1 && !o.bidirectional) {
            const double before = attended_pairs(c_, int64_t(double(seq_) * (1 - 1 / n))),
                         more = n * (1 - before / attended_pairs(c_, seq_)) - 1;
            cost.forward.compute += attended * std::max(more, 0.0);
            cost.backward.compute += back * std::max(more, 0.0);
        }
        if (o.variant == Variant::all_gather) {
            const Spread group = spread(PlanAxis::cp);
            const double gathers = 2 * links_.call(Collective::all_gather, n * keys / 2, group);
            cost.forward.context += gathers;
            cost.backward.context +=
                gathers + 2 * links_.call(Collective::reduce_scatter, n * sums / 2, group);
            return;
        }
        if (u > 1) {
            const Spread group = hw_.nodes.spread(u, stride);
            const double exchanges =
                2 * (links_.call(Collective::all_to_all, tokens_ * q * e_, group) +
                     links_.call(Collective::all_to_all, keys / 2, group));
            cost.forward.context += exchanges, cost.backward.context += exchanges;
        }
        if (n == 1) return;
        // Tails travel in the opposite direction of heads, at the same time.
        const double part = o.bidirectional ? 0.5 : 1;
        Hops to{n - 1, part * keys}, back_again{n - 1, part * sums};
        const bool window = c_.window > 0;  // then few keys travel, and gradients as far, and home
        if (window) {
            const SequenceCut cut(o.layout, int64_t(n), seq_, mask_of(c_));
            const RingPlan ring(cut, o.bidirectional, nullptr);
            to = busiest(ring, cut, traffic_of_keys, part * keys);
            back_again = busiest(ring, cut, traffic_of_gradients, part * sums);
        }
        // After every hop a ring merges a partial output, and adds up gradients, in fp32.
        cost.forward.compute += hw_.moved(to.count * tokens_ * q * (8 + e_), 4 * to.count);
        cost.backward.compute += hw_.moved(to.count * tokens_ * (q + 2 * kv) * 12, 8 * to.count);
        const Spread group = hw_.nodes.spread(int64_t(n), stride * u);
        const LinkRate& link = links_.of(group);
        // A hop is a message whose sender computes. (In a node of GPUs copy engines carry it.)
        const bool copied = !group.crosses() && hw_.nodes.crossing != Crossing::exchange;
        const double latency = copied ? link.latency : link.message_latency;
        const auto seconds = [&](const Hops& hops) {
            return hops.count * (links_.hop(hops.bytes, group) + latency);
        };
        const auto seen = [&](double hops, double under) {
            const double waited_for = std::max(hops - under, 0.0);
            return waited_for + link.message_slows * (hops - waited_for);
        };
        const double share = to.count / (to.count + 1);  // of the attention, which hides them
        cost.forward.context += seen(seconds(to), share * attended);
        const bool restarted = window || o.bidirectional || o.backward == RingBackward::restarted,
                   kept = !restarted && o.backward == RingBackward::kept;
        const Hops again{to.count - (kept ? 1 : 0), to.bytes};
        cost.backward.context += seen(seconds(again) + seconds(back_again), share * back);
        if (restarted && !window)  // the way home
            cost.backward.context += seconds({1, back_again.bytes});
    }

    // Adds the rows' way to the experts and back, with the names and weights that go beside them. A
    // forward also exchanges the counts. `tokens`: those of a micro-batch that this rank routes.
    void add_experts(UnitCost& cost, int64_t tokens) const {
        if (plan_.ep == 1) return;
        ExpertOptions o = plan_.experts;
        o.ep = int(plan_.ep);
        const ExpertsConfig& e = c_.experts;
        const double row = double(c_.hidden) * e_, k = double(e.router.top_k);
        const int64_t stride = plan_.stride(PlanAxis::ep);
        const auto exchange = [&](const Spread& group, double bytes) {
            return links_.call(Collective::all_to_all, bytes, group);
        };
        const Spread ep = spread(PlanAxis::ep);
        if (o.dispatch != Dispatch::rank) {
            const double rows = double(even_rows(e, o, tokens)), C = double(o.chunks_here());
            const double pass = C * (2 * exchange(ep, rows / C * row) + exchange(ep, rows / C * 4));
            cost.forward.experts += pass;
            if (o.capacity_factor == 0)
                cost.forward.experts += C * exchange(ep, double(e.count) * 4);
            cost.backward.experts += pass;
            return;
        }
        const auto hop = [&](const Spread& group, double rows) {
            const double named = exchange(group, rows * k * 4);
            const double there_and_back = 2 * exchange(group, rows * row);
            cost.forward.experts +=
                there_and_back + 2 * named +
                links_.call(Collective::all_gather, group.ranks * group.ranks * 4, group);
            cost.backward.experts += there_and_back + named;
        };
        const std::vector<DispatchStatistics::Rows::OfStage> hops = balanced_stages(e, o, tokens);
        if (hops.size() == 1) return hop(ep, double(hops[0].left));
        hop(hw_.nodes.spread(plan_.ep / o.node_size, stride * o.node_size), double(hops[0].left));
        hop(hw_.nodes.spread(o.node_size, stride), double(hops[1].left));
    }

    // Returns the seconds of a message (a rank's part of the stream) from each place of the
    // pipeline to the next one or back; the last is between the last place and the first. Some
    // neighbours are on one node.
    std::vector<double> messages() const {
        const int64_t stride = plan_.stride(PlanAxis::pp);
        const double bytes = stream_ / parts(), senders = spread(PlanAxis::pp).senders;
        const auto seconds = [&](bool far) {
            return links_.call(Collective::send_recv, bytes, {2, far ? 1.0 : 2.0, senders});
        };
        const double near = seconds(false), far = seconds(true);
        std::vector<double> links;
        for (int64_t i = 0; i < plan_.pp; ++i) {
            const int64_t next = (i + 1) % plan_.pp;
            links.push_back(hw_.nodes.between(int(i * stride), int(next * stride)) ? far : near);
        }
        return links;
    }

private:
    struct Hops {
        double count, bytes;  // bytes of each
    };
    // Those of the rank that sends the most; `bytes` are those of all tokens of a rank.
    static Hops busiest(const RingPlan& ring, const SequenceCut& cut,
                        RingTraffic (*traffic)(const RingPlan&, int), double bytes) {
        Hops most{0, 0};
        for (int rank = 0; rank < int(cut.ranks()); ++rank) {
            const auto [calls, tokens] = traffic(ring, rank);
            const double sent = bytes * double(tokens) / double(cut.length());
            if (sent > most.count * most.bytes) most = {double(calls), sent / double(calls)};
        }
        return most;
    }
    // The numbers of all-gathers, reduce-scatters and all-reduces of tensors (tokens, h) over tp.
    struct TensorCalls {
        double gathers = 0, scatters = 0, sums = 0;
    };
    bool summed() const { return !plan_.tensor.sequence_parallel; }
    // Returns the seconds of the calls' part that is not hidden.
    double seconds(const TensorCalls& calls) const {
        const auto of = [&](double times, Collective kind) {
            return times == 0 ? 0 : times * links_.call(kind, stream_, spread(PlanAxis::tp));
        };
        // The product beside them, cut into chunks, hides them. It is long enough for the links in
        // a node; nobody has fitted it to links between nodes.
        const double hidden = spread(PlanAxis::tp).crosses() ? 0 : hw_.tensor_hidden;
        return (1 - hidden) * (of(calls.gathers, Collective::all_gather) +
                               of(calls.scatters, Collective::reduce_scatter) +
                               of(calls.sums, Collective::all_reduce));
    }
    void add(UnitCost& cost, const TensorCalls& forward, const TensorCalls& backward) const {
        if (plan_.tp == 1) return;
        cost.forward.tensor += seconds(forward), cost.backward.tensor += seconds(backward);
    }
    // Into how many parts sequence parallelism divides the residual stream between layers.
    double parts() const { return plan_.tensor.sequence_parallel ? tp_ : 1; }
    Spread spread(PlanAxis axis) const {
        return hw_.nodes.spread(plan_.size(axis), plan_.stride(axis));
    }

    const LlamaConfig& c_;
    const Hardware& hw_;
    const Links links_;
    const Plan& plan_;
    double e_;       // bytes of a number
    int64_t seq_;    // tokens of a sequence
    double tokens_;  // of a micro-batch, on a rank of cp
    double tp_;
    double stream_;  // bytes of the residual stream on all ranks of tp
};

}  // namespace ultrascale::five_d
