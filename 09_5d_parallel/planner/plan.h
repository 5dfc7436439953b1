// A layout that the planner considers, and the words for it.
#pragma once

#include "../techniques.h"
#include "report/estimate.h"

namespace ultrascale {

struct Plan {
    int64_t dp = 1, tp = 1, cp = 1, ep = 1, pp = 1;
    int zero = 0;
    int64_t micro_batch = 1, micro_batches = 1;  // sequences; micro-batches of a step
    int chunks = 1;                              // stages a rank: 1 is 1f1b, more interleaved
    Recompute recompute = Recompute::none;
    bool gathers_keys = false;  // context parallelism by all-gather, not by a ring

    int64_t ranks() const { return dp * tp * cp * ep * pp; }
    int64_t sequences() const { return micro_batch * micro_batches * dp * ep; }
    bool operator==(const Plan&) const = default;
    // Ranks between two neighbours along an axis, in the order tp, cp, ep, dp, pp.
    int64_t stride_of_cp() const { return tp; }
    int64_t stride_of_ep() const { return tp * cp; }
    int64_t stride_of_dp() const { return tp * cp * ep; }
    int64_t stride_of_pp() const { return tp * cp * ep * dp; }

    // The same in the terms of the chapters, to be run. Sequence parallelism comes with tp.
    Techniques techniques(Techniques given = {}) const {
        given.axes.dp = int(dp), given.axes.tp = int(tp), given.axes.cp = int(cp);
        given.axes.ep = int(ep), given.axes.pp = int(pp);
        given.zero.stage = zero;
        given.tensor.sequence_parallel = tp > 1;
        given.context.variant = gathers_keys ? Variant::all_gather : Variant::ring;
        given.schedule = chunks > 1 ? "interleaved" : "1f1b";
        given.sizes = {.chunks = chunks > 1 ? chunks : 0};
        given.complete(int(ranks()));
        return given;
    }
    // What --explain-layout takes, and what a run of it is told.
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

// The pipeline's schedule, of so many micro-batches.
inline Schedule plan_schedule(const Plan& plan, int micro_batches) {
    return plan.chunks > 1
               ? make_schedule("interleaved", int(plan.pp), micro_batches, {.chunks = plan.chunks})
               : one_f_one_b(int(plan.pp), micro_batches);
}

// "dp 8 tp 4 pp 2, ZeRO-1, 16 x 2 sequences": short enough for a table.
inline std::string describe(const Plan& p) {
    std::string text;
    const auto axis = [&](const char* name, int64_t size) {
        if (size > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " ", name, size);
    };
    axis("dp", p.dp), axis("ep", p.ep), axis("cp", p.cp), axis("tp", p.tp), axis("pp", p.pp);
    if (text.empty()) text = "one rank";
    if (p.chunks > 1) text += fmt::format(" v {}", p.chunks);
    if (p.zero > 0) text += fmt::format(" ZeRO-{}", p.zero);
    if (p.recompute == Recompute::full) text += " recompute";
    return text;
}

}  // namespace ultrascale
