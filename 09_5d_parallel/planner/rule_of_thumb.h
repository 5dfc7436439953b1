// The playbook's rule of thumb, "Finding the best training configuration", in its three steps:
//
//     1  make a step fit      under 10 B parameters one technique, ZeRO-3; up to 100 B and beyond
//                             tp of a node as well; from 512 GPUs on, ZeRO-3 alone sends too
//                             much: with tp or a pipeline; from 1,024 on tp of a node, a
//                             pipeline, and ZeRO-2. If it still does not fit: recomputation, and
//                             more stages
//     2  reach the batch      more data parallelism or accumulated micro-batches; cp for long
//                             sequences; if the batch has too few for dp, more of tp and pp
//     3  go faster            the largest micro-batch that fits
//
// This is what one does by hand and in a few tries, while the planner tries everything. If both
// agree, the rule has been enough.
#pragma once

#include "planner.h"

namespace ultrascale::five_d {

struct RuleOfThumb {
    std::optional<Ranked> chosen;  // none: nothing fits by the rule
    std::vector<std::string> steps;
};

inline RuleOfThumb rule_of_thumb(Planner& planner) {
    const PlanFor& f = planner.what();
    const LlamaConfig& c = f.shape.config;
    const double billions = double(parameter_count(c)) / 1e9;
    const int64_t node = f.hardware.nodes.ranks;
    RuleOfThumb rule;
    Plan plan;
    const auto widest_tp = [&] {
        int64_t tp = 1;
        for (int64_t t = 2; t <= std::min(node, f.gpus); t *= 2)
            if (f.gpus % t == 0 && c.heads % t == 0 && c.ffn % t == 0 &&
                (c.kv_heads % t == 0 || t % c.kv_heads == 0))
                tp = t;
        return tp;
    };
    // Step 1.
    if (f.gpus >= 1024) {
        plan.tp = widest_tp(), plan.pp = 2, plan.zero = 2;
        rule.steps.push_back(
            fmt::format("{} GPUs are 1,024 or more: tp {}, a pipeline, ZeRO-2", f.gpus, plan.tp));
    } else if (billions >= 10 || f.gpus >= 512) {
        plan.tp = widest_tp(), plan.zero = 3;
        rule.steps.push_back(fmt::format(
            "{}: tp {} and ZeRO-3",
            f.gpus >= 512 ? fmt::format("{} GPUs are 512 or more", f.gpus)
                          : fmt::format("{:.0f} B parameters are 10 B or more", billions),
            plan.tp));
    } else {
        plan.zero = 3;
        rule.steps.push_back(
            fmt::format("{:.1f} B parameters are under 10 B: ZeRO-3 alone", billions));
    }
    if (c.experts.count > 0) {
        for (int64_t ep = node; ep > 1; ep /= 2)
            if (f.gpus % (plan.tp * plan.pp * ep) == 0 && c.experts.count % ep == 0) {
                plan.ep = ep;
                break;
            }
        rule.steps.push_back(fmt::format("it has experts: ep {}", plan.ep));
    }
    // Step 2.
    if (f.shape.seq >= 32768)
        while (f.shape.seq / plan.cp > 8192 &&
               f.gpus % (plan.tp * plan.pp * plan.ep * plan.cp * 2) == 0)
            plan.cp *= 2;
    const auto others = [&] { return plan.tp * plan.cp * plan.ep * plan.pp; };
    while (f.gpus / others() * plan.ep > f.sequences) {
        if (plan.tp < widest_tp())
            plan.tp *= 2;
        else if (plan.pp * 2 <= c.layers && f.gpus % (others() * 2) == 0)
            plan.pp *= 2;
        else
            break;
    }
    // Tries ever more layers on other ranks until it fits; step 3 finds the largest micro-batch.
    for (;; plan.pp *= 2) {
        if (plan.pp > c.layers || f.gpus % others() != 0) break;
        plan.dp = f.gpus / others();
        if (plan.dp * plan.ep > f.sequences || f.sequences % (plan.dp * plan.ep) != 0) continue;
        const int64_t own = f.sequences / (plan.dp * plan.ep);
        for (const Recompute recompute : {Recompute::none, Recompute::full}) {
            plan.recompute = recompute;
            for (int64_t micro_batch = 32; micro_batch >= 1; micro_batch /= 2) {
                plan.micro_batch = micro_batch, plan.micro_batches = own / micro_batch;
                // A pipeline needs many micro-batches more than it needs large ones.
                if (own % micro_batch != 0 || !why_not(f, plan).empty() ||
                    (micro_batch > 1 && plan.micro_batches < 4 * plan.pp && plan.pp > 1) ||
                    planner.memory().worst(plan).most > f.limit())
                    continue;
                rule.steps.push_back(fmt::format(
                    "{} on {}: {}{}{}", format_count(f.sequences, "sequence"),
                    format_count(plan.dp * plan.ep, "replica"),
                    format_count(plan.micro_batches, "micro-batch"),
                    plan.cp > 1 ? fmt::format(", cp {} for long sequences", plan.cp) : "",
                    plan.pp > 1 ? fmt::format(", pp {}", plan.pp) : ""));
                rule.steps.push_back(
                    fmt::format("the largest micro-batch that fits: {}{}", micro_batch,
                                recompute == Recompute::full ? ", with recomputation" : ""));
                rule.chosen = planner.one(plan);
                return rule;
            }
        }
    }
    rule.steps.push_back("nothing fits by the rule");
    return rule;
}

}  // namespace ultrascale::five_d
