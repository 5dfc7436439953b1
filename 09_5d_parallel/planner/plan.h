// A layout that the planner considers, and its description.
#pragma once

#include <array>

#include "../lab/chosen.h"
#include "comm/nodes.h"
#include "lab/predict/estimate.h"

namespace ultrascale::five_d {

enum class PlanAxis { tp, cp, ep, dp, pp };
inline constexpr std::array<const char*, 5> axis_names = {"tp", "cp", "ep", "dp", "pp"};

struct Plan {
    int64_t dp = 1, tp = 1, cp = 1, ep = 1, pp = 1;
    int zero = 0;
    int64_t micro_batch = 1, micro_batches = 1;  // sequences in one; micro-batches in a step
    int chunks = 1;                              // stages a rank: 1 is 1f1b, more are interleaved
    Recompute recompute = Recompute::none;
    double bucket = 25 * 1048576;  // bytes of gradients that are summed at a time (ZeRO-0)
    bool fp8 = false;              // the linears of the layers multiply in fp8
    // How each technique works. The numbers of ranks, and ZeRO's stage, are those above.
    ContextOptions context = {};
    TensorOptions tensor = {.sequence_parallel = true};
    ExpertOptions experts = {};
    ZeroOptions states = {};
    std::array<PlanAxis, 5> order = {PlanAxis::tp, PlanAxis::cp, PlanAxis::ep, PlanAxis::dp,
                                     PlanAxis::pp};

    // Ranks of dp that share a set of ZeRO's shards (--shard-size), and how many such sets exist.
    int64_t sharing() const { return states.shard_size > 0 ? states.shard_size : dp; }
    int64_t replicas() const { return dp / sharing(); }
    int64_t ranks() const { return dp * tp * cp * ep * pp; }
    // Whether one micro-batch computes while another one's rows travel to experts (06).
    bool interleaves() const { return experts.overlap == ExpertOverlap::batches && ep > 1; }
    int64_t sequences() const { return micro_batch * micro_batches * dp * ep; }
    int64_t size(PlanAxis axis) const {
        const std::array<int64_t, 5> sizes = {tp, cp, ep, dp, pp};
        return sizes[size_t(axis)];
    }
    // Returns the distance in ranks between two neighbours along an axis.
    int64_t stride(PlanAxis axis) const {
        int64_t ranks = 1;
        for (size_t i = 0; order[i] != axis; ++i) ranks *= size(order[i]);
        return ranks;
    }

    // Returns the plan in the chapters' terms, to be run.
    Techniques techniques() const {
        Techniques t{.zero = states, .tensor = tensor, .context = context, .experts = experts};
        t.axes.dp = int(dp), t.axes.tp = int(tp), t.axes.cp = int(cp);
        t.axes.ep = int(ep), t.axes.pp = int(pp);
        for (size_t i = 0; i < order.size(); ++i) t.axes.order[i] = axis_names[size_t(order[i])];
        t.zero.stage = zero;
        t.schedule = chunks > 1 ? "interleaved" : interleaves() ? "1f1b-overlap" : "1f1b";
        t.sizes = {.chunks = chunks > 1 ? chunks : 0};
        complete(t, int(ranks()), layout_names[int(context.layout)]);
        if (tp == 1) t.tensor = {.tp = 1};
        return t;
    }
    // Returns the options that the search has chosen, as --explain-layout and a run take them,
    // beside those that were given: how the techniques work, and the order of the axes.
    std::string options() const {
        std::string text;
        const auto add = [&](const char* name, int64_t value, int64_t unless) {
            if (value != unless) text += fmt::format("--{} {} ", name, value);
        };
        add("dp", dp, 0), add("tp", tp, 1);
        if (tp > 1) text += "--sequence-parallel ";
        add("cp", cp, 1), add("ep", ep, 1), add("pp", pp, 1);
        if (chunks > 1) text += fmt::format("--schedule interleaved --chunks {} ", chunks);
        add("zero", zero, 0);
        add("micro-batch", micro_batch, 0), add("grad-accum", micro_batches, 0);
        if (recompute == Recompute::full) text += "--recompute full ";
        text.pop_back();
        return text;
    }
};

// Returns the pipeline's schedule for so many micro-batches.
inline Schedule plan_schedule(const Plan& plan, int micro_batches) {
    return plan.chunks > 1
               ? make_schedule("interleaved", int(plan.pp), micro_batches, {.chunks = plan.chunks})
           : plan.interleaves() ? one_f_one_b_overlap(int(plan.pp), micro_batches)
                                : one_f_one_b(int(plan.pp), micro_batches);
}

// "dp 8 tp 4 pp 2 v 4 ZeRO-1 recompute": short enough for a table. v: chunks a rank.
inline std::string describe(const Plan& p) {
    std::string text;
    const auto axis = [&](const char* name, int64_t size) {
        if (size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " ", name, size);
    };
    axis("dp", p.dp), axis("ep", p.ep), axis("cp", p.cp), axis("tp", p.tp), axis("pp", p.pp);
    if (text.empty()) text = "one rank";
    if (p.chunks > 1) text += fmt::format(" v {}", p.chunks);
    if (p.zero > 0) text += fmt::format(" ZeRO-{}", p.zero);
    if (p.replicas() > 1) text += fmt::format(" of {}", p.sharing());
    if (p.recompute == Recompute::full) text += " recompute";
    return text;
}

}  // namespace ultrascale::five_d
