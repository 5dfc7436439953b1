// --plan: which layout should I use? All of them are tried on paper:
//
//     every dp x ep x cp x tp x pp = GPUs that cuts the model and the sequence,
//       x micro-batch  x ZeRO 0 .. 3  x chunks of a pipeline  x recomputation
//     drop what does not fit             memory.h, on the rank that needs most
//     rank by the time of a step         cost.h
//     simulate the best ones             05's simulator, with every stage's own cost
//
// What fits is cheaper to find out than how fast it is, and what persists cheaper than what peaks;
// so a layout is dropped by the first that is too much.
#pragma once

#include <span>

#include "cost.h"

namespace ultrascale {

// What a plan is made for.
struct PlanFor {
    StepShape shape;  // the model, dtypes and sequence; its micro-batch is each plan's
    Hardware hardware;
    int64_t gpus = 8;
    int64_t sequences = 256;  // of a step, over all ranks
    bool fp8 = false;         // the linears of the layers multiply in fp8

    // Bytes that tensors may take: the context, NCCL's buffers and fragments need the rest.
    static constexpr double share_of_tensors = 0.94;
    int64_t limit() const { return int64_t(share_of_tensors * hardware.memory); }
};

struct Ranked {
    Plan plan;
    StepCost cost;
    MemoryModel::Held memory;
    double seconds = 0;  // of a step: cost's, or as simulated
};

struct Planned {
    std::vector<Ranked> fit;  // the fastest first
    int64_t considered = 0;
    Ranked smallest;  // if none fits: the one that needs least
};

inline std::vector<int64_t> divisors(int64_t n) {
    std::vector<int64_t> low, high;
    for (int64_t d = 1; d * d <= n; ++d)
        if (n % d == 0) {
            low.push_back(d);
            if (d * d < n) high.push_back(n / d);
        }
    low.insert(low.end(), high.rbegin(), high.rend());
    return low;
}

// "" or why the model, its sequence or its batch cannot be cut so.
inline std::string why_not(const PlanFor& f, const Plan& p) {
    const LlamaConfig& c = f.shape.config;
    const int64_t E = c.experts.count;
    if (c.heads % p.tp != 0 || (c.kv_heads % p.tp != 0 && p.tp % c.kv_heads != 0))
        return fmt::format("tp {}: {} heads with {} of keys are not shared equally", p.tp, c.heads,
                           c.kv_heads);
    if (c.ffn % p.tp != 0) return fmt::format("tp {}: it must divide F {}", p.tp, c.ffn);
    if (p.cp > 1 && f.shape.seq % (2 * p.cp) != 0)
        return fmt::format("cp {}: sequences of {} are not 2 cp equal parts", p.cp,
                           format_count(f.shape.seq, "token"));
    if (p.micro_batch * f.shape.seq / p.cp % p.tp != 0)
        return fmt::format("tp {}: it must divide the tokens of a micro-batch", p.tp);
    if (p.ep > 1 && (E == 0 || E % p.ep != 0))
        return fmt::format("ep {}: it must divide the {}", p.ep, format_count(E, "expert"));
    if (p.pp * p.chunks > c.layers)
        return fmt::format("pp {} with {} chunks: the model has only {}", p.pp, p.chunks,
                           format_count(c.layers, "layer"));
    if (p.chunks > 1 && (p.pp == 1 || p.micro_batches % p.pp != 0))
        return fmt::format("{} chunks: {} micro-batches are no multiple of pp {}", p.chunks,
                           p.micro_batches, p.pp);
    return "";
}

class Planner {
public:
    explicit Planner(const PlanFor& what)
        : for_(what), memory_(what.shape), cost_(for_.shape, for_.hardware, memory_) {}

    // Calls see(plan) for every layout. (Not for those of cp whose chunks of a sequence, two a
    // rank, are shorter than a tile of attention.)
    template <class See>
    void for_each(See see) const {
        constexpr int64_t tile = 16;
        for (const int64_t pp : divisors(for_.gpus))
            for (const int64_t tp : divisors(for_.gpus / pp))
                for (const int64_t cp : divisors(for_.gpus / pp / tp)) {
                    if (cp > 1 && for_.shape.seq / (2 * cp) < tile) continue;
                    for (const int64_t ep : divisors(for_.gpus / pp / tp / cp)) {
                        Plan plan{.dp = for_.gpus / pp / tp / cp / ep,
                                  .tp = tp,
                                  .cp = cp,
                                  .ep = ep,
                                  .pp = pp,
                                  .fp8 = for_.fp8};
                        with_batch(plan, see);
                    }
                }
    }

    // All layouts that fit. The first that do not fit are only needed while none does.
    Planned plan() {
        Planned all;
        all.smallest.memory.most = INT64_MAX;
        for_each([&](const Plan& plan) {
            ++all.considered;
            if (!all.fit.empty() && memory_.at_least(plan) > for_.limit()) return;
            Ranked ranked{.plan = plan, .memory = memory_.worst(plan)};
            if (ranked.memory.most > for_.limit()) {
                if (ranked.memory.most < all.smallest.memory.most) all.smallest = ranked;
                return;
            }
            ranked.cost = cost_.of(plan), ranked.seconds = ranked.cost.seconds();
            all.fit.push_back(ranked);
        });
        const auto faster = [](const Ranked& a, const Ranked& b) {
            return a.seconds != b.seconds ? a.seconds < b.seconds : a.memory.most < b.memory.most;
        };
        std::ranges::sort(all.fit, faster);
        const std::span best(all.fit.data(), std::min<size_t>(all.fit.size(), 40));
        for (Ranked& ranked : best) simulate(ranked);
        std::ranges::sort(best, faster);
        return all;
    }
    // One layout, whether it fits or not.
    Ranked one(const Plan& plan) {
        Ranked ranked{.plan = plan, .cost = cost_.of(plan), .memory = memory_.worst(plan)};
        ranked.seconds = ranked.cost.seconds();
        simulate(ranked);
        return ranked;
    }
    double mfu(const Ranked& r) const { return cost_.mfu(r.plan, r.seconds); }
    const PlanFor& what() const { return for_; }
    MemoryModel& memory() { return memory_; }
    CostModel& cost() { return cost_; }

private:
    // Every way in which these ranks can take the batch.
    template <class See>
    void with_batch(Plan plan, See& see) const {
        const int64_t replicas = plan.dp * plan.ep;
        if (for_.sequences % replicas != 0) return;
        const bool shards = replicas * plan.cp > 1;
        const int64_t own = for_.sequences / replicas;
        for (const int64_t micro_batch : {1, 2, 4, 8, 16, 32}) {
            if (own % micro_batch != 0) continue;
            plan.micro_batch = micro_batch, plan.micro_batches = own / micro_batch;
            for (const int chunks : {1, 2, 4, 8}) {
                plan.chunks = chunks;
                if (!why_not(for_, plan).empty()) continue;
                for (plan.zero = 0; plan.zero <= (shards ? 3 : 0); ++plan.zero)
                    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
                        plan.recompute = recompute;
                        see(plan);
                    }
            }
        }
    }
    // Lets 05's simulator run the pipeline with its ranks' own costs; the difference to the formula
    // counts as bubble. (Not of the longest pipelines, whose simulation would take seconds.)
    void simulate(Ranked& r) {
        if (r.plan.pp == 1 || r.plan.pp * r.plan.micro_batches * r.plan.chunks > 20'000) return;
        const Schedule schedule = plan_schedule(r.plan, int(r.plan.micro_batches));
        Costs costs{.links = cost_.messages(r.plan)};
        const std::vector<UnitCost> ranks = cost_.of_ranks(r.plan);
        for (int s = 0; s < schedule.stages; ++s) {
            const UnitCost& of = ranks[size_t(s % int(r.plan.pp))];
            costs.stages.push_back(
                {of.forward.all() / r.plan.chunks, of.backward.all() / r.plan.chunks, 0});
        }
        const double passes = ultrascale::simulate(schedule, costs).seconds,
                     formula = r.cost.seconds() - r.cost.data - r.cost.optimizer;
        r.cost.bubble += passes - formula;
        r.seconds = r.cost.seconds();
    }

    PlanFor for_;
    MemoryModel memory_;
    CostModel cost_;
};

}  // namespace ultrascale
