// Predicts the time of a step of a layout.
//
//     |<-------- m micro-batches at the pace of the slowest stage -------->|<- fill and drain ->|
//     [F D F D F D ...: compute | tensor | context | experts        | uneven ][ bubble | messages ]
//     + sums of gradients and gathers of weights that no pass hides, + the optimizer
//
// A pipeline of stages with times s_0 ... s_{p-1} for one micro-batch takes m max(s) + (sum of the
// others) / v. With equal stages this is 1F1B's formula (05), (m + (p-1)/v) s; for uneven ones it
// is what 05's simulator gives. Messages delay the first and the last micro-batch by p-1 hops each,
// and every p micro-batches of 1F1B by as many (05); if they take longer than a stage computes, the
// slowest link sets the pace. With --ep-overlap batches the pace is that of a forward and a
// backward that run together (05's together.h); while the pipeline fills and drains, they run
// alone.
#pragma once

#include "layer_cost.h"
#include "memory.h"

namespace ultrascale::five_d {

// Seconds of a step on the slowest stage, by cause.
struct StepCost {
    double compute = 0, tensor = 0, context = 0, experts = 0;  // the average stage's
    double uneven = 0;    // additional time of the slowest stage
    double bubble = 0;    // fill and drain
    double messages = 0;  // delays by messages between stages
    double data = 0;      // waiting for gradients and weights that travel
    double optimizer = 0;
    double seconds() const {
        return compute + tensor + context + experts + uneven + bubble + messages + data + optimizer;
    }
};

class CostModel {
public:
    CostModel(const StepShape& shape, const Hardware& hardware, MemoryModel& memory)
        : shape_(shape), hw_(hardware), memory_(memory) {}

    // Returns the time of a step of this layout, by the formulas above.
    StepCost of(const Plan& plan) {
        const LayerCosts costs(shape_, hw_, plan);
        const std::vector<UnitCost> ranks = rank_costs(plan, costs);
        const double p = double(plan.pp), m = double(plan.micro_batches), v = plan.chunks;
        StepCost step;
        double slowest = 0, sum = 0, alone = 0;
        for (size_t rank = 0; rank < ranks.size(); ++rank) {
            const UnitCost& one = ranks[rank];
            const double part = m / p, hidden = hidden_of_pair(plan, costs, rank);
            step.compute += part * (one.forward.compute + one.backward.compute);
            step.tensor += part * (one.forward.tensor + one.backward.tensor);
            step.context += part * (one.forward.context + one.backward.context);
            step.experts += part * (one.forward.experts + one.backward.experts - hidden);
            slowest = std::max(slowest, one.both() - hidden), sum += one.both() - hidden;
            alone += one.both();
        }
        step.uneven = m * (slowest - sum / p);
        step.bubble = (alone - slowest) / v;
        if (plan.pp > 1) step.messages = messages(costs.messages(), m, v, slowest);
        const double updated = add_data(step, plan, ranks.front());
        step.optimizer =
            optimizer(updated, plan.zero < 2 ? memory_.elements(plan, 0).all() : updated);
        return step;
    }

    // Returns the model FLOPs utilisation, from 0 to 1, of a step that takes `seconds`: 6 N + 12 L
    // H D s FLOPs a token (common/lab/report), over what that many devices could compute at their
    // peak.
    double mfu(const Plan& plan, double seconds) const {
        const double tokens = double(plan.sequences() * shape_.seq);
        return model_flops_per_token(shape_.config, active_parameter_count(shape_.config),
                                     shape_.seq) *
               tokens / (seconds * hw_.peak * double(plan.ranks()));
    }
    // Returns each rank's time for a micro-batch, the first stage's first.
    std::vector<UnitCost> rank_costs(const Plan& plan) {
        return rank_costs(plan, LayerCosts(shape_, hw_, plan));
    }
    // Seconds of a message from each place to the next one (layer_calls.h).
    std::vector<double> messages(const Plan& plan) const {
        return LayerCosts(shape_, hw_, plan).messages();
    }

private:
    // The number of a stage's layers with experts.
    int64_t with_experts(const Stage& stage) const {
        const LlamaConfig& c = shape_.config;
        if (c.experts.count == 0) return 0;
        return stage.last_layer -
               std::clamp<int64_t>(c.experts.first_dense, stage.first_layer, stage.last_layer);
    }
    // The seconds of a micro-batch's transfers to experts that another micro-batch hides.
    double hidden_of_pair(const Plan& plan, const LayerCosts& costs, size_t rank) {
        if (!plan.interleaves()) return 0;
        const StageTurns turns = costs.turns(with_experts(memory_.stages(plan)[rank]));
        return turns.forward.alone() + turns.backward.alone() -
               seconds_together(turns.backward, turns.forward);
    }
    std::vector<UnitCost> rank_costs(const Plan& plan, const LayerCosts& costs) {
        const LlamaConfig& c = shape_.config;
        const UnitCost dense = costs.layer(false), head = costs.head(),
                       embedding = costs.embedding(),
                       experts = c.experts.count > 0 ? costs.layer(true) : dense;
        std::vector<UnitCost> ranks(size_t(plan.pp));
        const std::vector<Stage>& stages = memory_.stages(plan);
        for (size_t s = 0; s < stages.size(); ++s) {
            UnitCost& rank = ranks[s % ranks.size()];
            const int64_t layers = stages[s].last_layer - stages[s].first_layer,
                          routed = with_experts(stages[s]);
            rank += dense * double(layers - routed);
            rank += experts * double(routed);
            if (stages[s].embedding) rank += embedding;
            if (stages[s].head) rank += head;
        }
        return ranks;
    }

    // Returns the delay of a step by messages: those of the first and the last micro-batch on their
    // way through the pipeline, and those of 1F1B's other micro-batches once for each round; or, if
    // messages take longer than stages, all messages on the slowest link.
    static double messages(const std::vector<double>& links, double m, double v, double stage) {
        double way = 0, longest = 0;
        for (size_t i = 0; i + 1 < links.size(); ++i)
            way += links[i], longest = std::max(longest, links[i]);
        const double rounds = v > 1 ? 1 : std::max(m / double(links.size()), 1.0);
        return std::max(2 * way * rounds, 2 * way + m * v * longest - longest - (m - 1) * stage);
    }

    // Returns the time of AdamW on so many parameters. It reads and writes the states, writes the
    // weights (and reads them if there are no master weights), and reads the gradients. These are
    // read once more for their norm, and all gradients that the rank has are zeroed.
    double optimizer(double updated, double gradients) const {
        const double weight = double(dtype_bytes(shape_.model.dtype)),
                     gradient = double(dtype_bytes(shape_.grad_dtype)),
                     states = double(optimizer_bytes(shape_.model.dtype));
        const double weights = shape_.model.dtype == DType::fp32 ? 2 * weight : weight;
        return updated * (2 * states + weights + gradient) / hw_.update_rate +
               hw_.moved((updated + gradients) * gradient, 4);
    }

    // Adds the time of the sums of gradients and the gathers of weights; returns the number of
    // parameters that the rank updates. A sum runs under the last backward, a gather under the next
    // step's first forward, unit by unit. A unit's computation hides only the communication of the
    // units before it, so at least one unit's is waited for. Communication that is hidden slows the
    // pass. (Interleaved chunks end one after the other, p micro-batches apart.) ZeRO-0's units are
    // buckets of so many bytes, ZeRO's are the layers. ZeRO-2 sums after each micro-batch; ZeRO-3
    // also gathers for each, in both passes.
    double add_data(StepCost& step, const Plan& plan, const UnitCost& pass) {
        const RankParameters e = memory_.elements(plan, 0);
        // The ranks that share a set of shards, and those that hold the same shard.
        const Spread shared = hw_.nodes.spread(plan.sharing(), plan.stride(PlanAxis::dp)),
                     copies = hw_.nodes.spread(plan.replicas(),
                                               plan.stride(PlanAxis::dp) * plan.sharing()),
                     all = together(plan, {PlanAxis::cp, PlanAxis::ep}, shared),
                     expert_spread = together(plan, {PlanAxis::cp}, shared);
        const ZeroOptions& o = plan.states;
        const double m = double(plan.micro_batches),
                     layers =
                         std::max(1.0, std::round(double(shape_.config.layers) / double(plan.pp))),
                     grad_bytes = e.all() * double(dtype_bytes(shape_.grad_dtype)),
                     units = plan.zero > 0 ? layers
                                           : std::max(1.0, std::ceil(grad_bytes / plan.bucket));
        const Links links = hw_.links();
        const auto seconds = [&](Collective kind, double bytes, double others) {
            return units * (links.call(kind, others * bytes / units, all) +
                            links.call(kind, e.experts * bytes / units, expert_spread));
        };
        const double slows = links.of(all).collective_slows;
        const auto seen = [&](double communication, double under) {
            const double waited_for =
                std::max(communication - under * (units - 1) / units, communication / units);
            return waited_for + slows * (communication - waited_for);
        };
        // The wait for tp's communication hides it, too, if the two use different links: tp inside
        // a node, this one between nodes.
        const bool apart = !together(plan, {PlanAxis::tp}).crosses() && all.crosses();
        const double v = plan.chunks, passes = 1 + (std::min(double(plan.pp), m) - 1) * (v - 1) / v;
        const auto under = [&](const PassCost& cost) {
            return passes * (cost.compute + (apart ? cost.tensor : 0));
        };
        const double forward = under(pass.forward), backward = under(pass.backward);
        const auto width = [](Sent how, DType plain) {
            return how == Sent::fp8 ? 1.0 : how == Sent::bf16 ? 2.0 : double(dtype_bytes(plain));
        };
        const Sent sums = plan.zero >= 2 ? o.sums : Sent::plain,
                   gathers = plan.zero == 3 ? o.gathers : Sent::plain;
        const double scatter =
            seconds(sums == Sent::plain ? Collective::reduce_scatter : Collective::all_to_all,
                    width(sums, shape_.grad_dtype), e.others);
        const auto gather = [&](double others) {
            return seconds(Collective::all_gather, width(gathers, shape_.model.dtype), others);
        };
        const double gather_seconds = gather(e.others);
        const double others = plan.zero == 0 ? 1 : 1 / all.ranks,
                     experts = plan.zero == 0 ? 1 : 1 / expert_spread.ranks,
                     updated = e.others * others + e.experts * experts;
        // Once a step, under the last backward.
        const double over_copies =
            layers * links.call(Collective::all_reduce,
                                updated / layers * double(dtype_bytes(shape_.grad_dtype)), copies);
        if (plan.zero == 0) {
            step.data = seen(
                seconds(Collective::all_reduce, double(dtype_bytes(shape_.grad_dtype)), e.others),
                backward);
        } else if (plan.zero < 3) {
            step.data = (plan.zero == 2 ? m - 1 : 0) * seen(scatter, backward) +
                        seen(scatter + over_copies, backward) + seen(gather_seconds, forward);
        } else if (o.keep_gathered) {
            step.data = seen(gather_seconds, forward) + (m - 1) * seen(scatter, backward) +
                        seen(scatter + over_copies, backward);
        } else {  // the head's weights are still there when its backward begins
            const double both = gather(e.others - e.head) + scatter;
            step.data = m * seen(gather_seconds, forward) + (m - 1) * seen(both, backward) +
                        seen(both + over_copies, backward);
        }
        // Parameters that each rank of tp has whole get gradients from different tokens on each, so
        // these are summed once more, over tp.
        if (plan.tp > 1 && plan.tensor.sequence_parallel)
            step.data += layers * links.call(Collective::all_reduce,
                                             (e.whole * others + e.experts * experts) / layers *
                                                 double(dtype_bytes(shape_.grad_dtype)),
                                             together(plan, {PlanAxis::tp}));
        return updated;
    }
    // How the ranks along several axes together, and those of `all`, are spread over nodes.
    Spread together(const Plan& plan, std::initializer_list<PlanAxis> axes,
                    Spread all = {1, 1, 1}) const {
        for (const PlanAxis axis : axes) {
            const Spread one = hw_.nodes.spread(plan.size(axis), plan.stride(axis));
            all.ranks *= one.ranks, all.on_node *= one.on_node;
        }
        return all;
    }

    StepShape shape_;
    Hardware hw_;
    MemoryModel& memory_;
};

}  // namespace ultrascale::five_d
