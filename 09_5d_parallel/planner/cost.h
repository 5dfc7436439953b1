// The time of a step of a layout.
//
//     |<-------- m micro-batches at the pace of the slowest stage -------->|<- fill and drain ->|
//     [F D F D F D ...: compute | tensor | context | experts        | uneven ][ bubble | messages ]
//     + sums of gradients and gathers of weights that no pass hides, + the optimizer
//
// A pipeline of stages with times s_0 ... s_{p-1} for one micro-batch takes
// m max(s) + (sum of the others) / v: 1F1B's formula (05), which with equal stages is
// (m + (p-1)/v) s, and for uneven ones what its simulator gives. Messages delay the first and the
// last micro-batch by p-1 hops each, and every p micro-batches of 1F1B by as many (05).
#pragma once

#include "layer_cost.h"
#include "memory.h"

namespace ultrascale {

// Seconds of a step on the slowest stage, by what they go into.
struct StepCost {
    double compute = 0, tensor = 0, context = 0, experts = 0;  // of the average stage
    double uneven = 0;    // what the slowest stage takes longer
    double bubble = 0;    // fill and drain
    double messages = 0;  // hops that delay them
    double data = 0;      // gradients and weights that travel and are waited for
    double optimizer = 0;
    double seconds() const {
        return compute + tensor + context + experts + uneven + bubble + messages + data + optimizer;
    }
};

class CostModel {
public:
    CostModel(const StepShape& shape, const Hardware& hardware, MemoryModel& memory)
        : shape_(shape), hw_(hardware), memory_(memory) {}

    // A step of this layout, by the formulas above.
    StepCost of(const Plan& plan) {
        const LayerCosts costs(shape_, hw_, plan);
        const std::vector<UnitCost> ranks = of_ranks(plan, costs);
        const double p = double(plan.pp), m = double(plan.micro_batches), v = plan.chunks;
        StepCost step;
        double slowest = 0, sum = 0;
        for (const UnitCost& one : ranks) {
            const double part = m / p;
            step.compute += part * (one.forward.compute + one.backward.compute);
            step.tensor += part * (one.forward.tensor + one.backward.tensor);
            step.context += part * (one.forward.context + one.backward.context);
            step.experts += part * (one.forward.experts + one.backward.experts);
            slowest = std::max(slowest, one.both()), sum += one.both();
        }
        step.uneven = m * (slowest - sum / p);
        step.bubble = (sum - slowest) / v;
        const double hop = costs.hop(), rounds = v > 1 ? 1 : std::max(m / p, 1.0);
        step.messages = 2 * (p - 1) * hop * rounds;
        const double updated = add_data(step, plan, ranks.front());
        step.optimizer =
            optimizer(updated, plan.zero < 2 ? memory_.elements(plan, 0).all() : updated);
        return step;
    }

    // Model FLOPs utilisation of a step that takes so long, from 0 to 1: 6 N + 12 L H D s a token
    // (common/report), over what so many devices could compute at their peak.
    double mfu(const Plan& plan, double seconds) const {
        const double tokens = double(plan.sequences() * shape_.seq);
        return model_flops_per_token(shape_.config, active_parameter_count(shape_.config),
                                     shape_.seq) *
               tokens / (seconds * hw_.peak * double(plan.ranks()));
    }
    // What each rank of the pipeline takes for a micro-batch, first stage first.
    std::vector<UnitCost> of_ranks(const Plan& plan) {
        return of_ranks(plan, LayerCosts(shape_, hw_, plan));
    }
    // Seconds of a message between two stages.
    double hop(const Plan& plan) const { return LayerCosts(shape_, hw_, plan).hop(); }

private:
    std::vector<UnitCost> of_ranks(const Plan& plan, const LayerCosts& costs) {
        const LlamaConfig& c = shape_.config;
        const UnitCost dense = costs.layer(false), head = costs.head(),
                       experts = c.experts.count > 0 ? costs.layer(true) : dense;
        std::vector<UnitCost> ranks(size_t(plan.pp));
        const std::vector<Stage>& stages = memory_.stages(plan);
        for (size_t s = 0; s < stages.size(); ++s) {
            UnitCost& rank = ranks[s % ranks.size()];
            const int64_t layers = stages[s].last_layer - stages[s].first_layer,
                          first = c.experts.count > 0 ? c.experts.first_dense : c.layers,
                          before = std::clamp<int64_t>(first - stages[s].first_layer, 0, layers);
            rank += dense * double(before);
            rank += experts * double(layers - before);
            if (stages[s].head) rank += head;
        }
        return ranks;
    }

    // AdamW on so many parameters: it reads and writes its states, writes the weights, which it
    // reads only if there are no master weights, and reads the gradients. These are read once more
    // for their norm, and all that the rank has are zeroed.
    double optimizer(double updated, double gradients) const {
        const double weight = double(dtype_bytes(shape_.model.dtype)),
                     gradient = double(dtype_bytes(shape_.grad_dtype)),
                     states = double(optimizer_bytes(shape_.model.dtype));
        const double weights = shape_.model.dtype == DType::fp32 ? 2 * weight : weight;
        return updated * (2 * states + weights + gradient) / hw_.update_rate +
               hw_.moved((updated + gradients) * gradient, 4);
    }

    // What the sums of gradients and the gathers of weights take; returns the parameters that the
    // rank updates. A sum runs under the last backward, a gather under the next step's first
    // forward, unit by unit: what a unit has computed hides only the units before it, so that at
    // least one unit's communication is waited for. What is hidden slows the pass. (Interleaved
    // chunks end one after the other, p micro-batches apart.) ZeRO-0's units are buckets of so many
    // bytes, ZeRO's the layers. ZeRO-2 sums after each micro-batch; ZeRO-3 gathers for each, too,
    // in both passes.
    double add_data(StepCost& step, const Plan& plan, const UnitCost& pass) {
        const MemoryModel::Elements e = memory_.elements(plan, 0);
        const double ranks = double(plan.dp * plan.cp * plan.ep),
                     of_experts = double(plan.dp * plan.cp), m = double(plan.micro_batches),
                     layers =
                         std::max(1.0, std::round(double(shape_.config.layers) / double(plan.pp))),
                     of_grads = e.all() * double(dtype_bytes(shape_.grad_dtype)),
                     units =
                         plan.zero > 0 ? layers : std::max(1.0, std::ceil(of_grads / plan.bucket));
        const auto seconds = [&](Collective kind, DType dtype) {
            const double bytes = double(dtype_bytes(dtype)), calls = units;
            return calls * (hw_.call(kind, e.others * bytes / calls, ranks, double(plan.tp)) +
                            hw_.call(kind, e.experts * bytes / calls, of_experts, double(plan.tp)));
        };
        const double slows = hw_.link(ranks, double(plan.tp)).collective_slows;
        const auto seen = [&](double communication, double under) {
            const double waited_for =
                std::max(communication - under * (units - 1) / units, communication / units);
            return waited_for + slows * (communication - waited_for);
        };
        // Other communication hides it only on other links: tp's in a node, if this leaves it.
        const bool apart = plan.tp <= hw_.node && ranks * double(plan.tp) > hw_.node;
        const double v = plan.chunks, passes = 1 + (std::min(double(plan.pp), m) - 1) * (v - 1) / v;
        const auto under = [&](const PassCost& cost) {
            return passes * (cost.compute + (apart ? cost.tensor : 0));
        };
        const double forward = under(pass.forward), backward = under(pass.backward);
        const double scatter = seconds(Collective::reduce_scatter, shape_.grad_dtype),
                     gather = seconds(Collective::all_gather, shape_.model.dtype);
        if (plan.zero == 0)
            step.data = seen(seconds(Collective::all_reduce, shape_.grad_dtype), backward);
        else if (plan.zero == 3)
            step.data = m * (seen(gather, forward) + seen(gather + scatter, backward));
        else
            step.data = (plan.zero == 2 ? m : 1) * seen(scatter, backward) + seen(gather, forward);
        return plan.zero == 0 ? e.all() : e.others / ranks + e.experts / of_experts;
    }

    StepShape shape_;
    Hardware hw_;
    MemoryModel& memory_;
};

}  // namespace ultrascale
