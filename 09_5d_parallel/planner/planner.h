// --plan: which layout should I use? The planner tries all of them on paper:
//
//     every dp x ep x cp x tp x pp = GPUs that cuts the model and the sequence,
//       x micro-batch  x ZeRO 0 .. 3  x chunks of a pipeline  x recomputation
//     drop what does not fit             memory.h, on the rank that needs most
//     rank by the time of a step         cost.h
//     simulate the best ones             05's simulator, with every stage's own cost
//
// To find out whether a layout fits is cheaper than to find out how fast it is, and what persists
// is cheaper to compute than the peak. So a layout is dropped by the first test that it fails.
#pragma once

#include <optional>
#include <span>

#include "cost.h"

namespace ultrascale::five_d {

// The sizes that are given, and not searched.
struct Fixed {
    std::optional<int64_t> dp, tp, cp, ep, pp, micro_batch, micro_batches;
    std::optional<int> zero, chunks;
    std::optional<bool> interleaved;
    std::optional<Recompute> recompute;

    bool allows(const Plan& p) const {
        const auto is = [](const auto& given, auto value) { return !given || *given == value; };
        return is(dp, p.dp) && is(tp, p.tp) && is(cp, p.cp) && is(ep, p.ep) && is(pp, p.pp) &&
               is(micro_batch, p.micro_batch) && is(micro_batches, p.micro_batches) &&
               is(zero, p.zero) && is(chunks, p.chunks) && is(interleaved, p.chunks > 1) &&
               is(recompute, p.recompute);
    }
};

// The question: for what a plan is made.
struct PlanFor {
    StepShape shape;  // the model, dtypes and sequence; its micro-batch is each plan's
    Hardware hardware;
    int64_t gpus = 8;
    int64_t sequences = 256;  // in a step, over all ranks
    bool fp8 = false;         // the linears of the layers multiply in fp8
    Plan like = {};           // how each layout applies its techniques, and the order of its axes
    Fixed fixed;
    // Returns why a run would refuse a layout, or "": the run's own check. It is asked last, for
    // the layouts that are proposed; why_not() knows the same from formulas.
    std::function<std::string(const Plan&)> refused = [](const Plan&) { return ""; };

    // The share that tensors may take: the context, NCCL's buffers and fragments need the rest.
    static constexpr double share_of_tensors = 0.94;
    int64_t limit() const { return int64_t(share_of_tensors * hardware.memory); }
};

struct Ranked {
    Plan plan;
    StepCost cost;
    MemoryModel::RankMemory memory;
    double seconds = 0;  // a step's: by cost, or simulated
};

struct Planned {
    std::vector<Ranked> fit;  // the fastest first, without those that a run was found to refuse
    int64_t considered = 0;
    int64_t refused = 0;      // they fit, but a run would refuse them, as far as it was asked,
    std::string why_refused;  // and why the fastest of these
    Ranked smallest;          // if none fits: the layout that needs the least memory
    std::string why_not;      // if none was considered: what prevented one of them
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

// Returns "" or why the model, its sequence or its batch cannot be cut so.
inline std::string why_not(const PlanFor& f, const Plan& p) {
    const LlamaConfig& c = f.shape.config;
    const int64_t E = c.experts.count;
    if (c.heads % p.tp != 0 || (c.kv_heads % p.tp != 0 && p.tp % c.kv_heads != 0))
        return fmt::format("tp {}: {} heads with {} of keys are not shared equally", p.tp, c.heads,
                           c.kv_heads);
    if (c.ffn % p.tp != 0) return fmt::format("tp {}: it must divide F {}", p.tp, c.ffn);
    if (c.vocab < p.tp) return fmt::format("tp {}: there are only {} tokens", p.tp, c.vocab);
    if (p.cp > 1 && f.shape.seq % (2 * p.cp) != 0)
        return fmt::format("cp {}: {} tokens are not 2 cp equal parts", p.cp, f.shape.seq);
    if (p.cp > 1 && p.context.variant == Variant::usp && p.cp % p.context.ulysses != 0)
        return fmt::format("cp {}: --ulysses {} must divide it", p.cp, p.context.ulysses);
    if (f.shape.seq / p.cp % p.tp != 0)
        return fmt::format("tp {}: it must divide a rank's {} tokens of a sequence", p.tp,
                           f.shape.seq / p.cp);
    if (p.ep > 1 && (E == 0 || E % p.ep != 0))
        return fmt::format("ep {}: it must divide the {}", p.ep, format_count(E, "expert"));
    if (p.pp * p.chunks > c.layers)
        return fmt::format("pp {} with {} chunks: the model has only {}", p.pp, p.chunks,
                           format_count(c.layers, "layer"));
    if (p.dp % p.sharing() != 0)
        return fmt::format("dp {}: --shard-size {} must divide it", p.dp, p.sharing());
    if (p.chunks > 1 && p.pp == 1)
        return fmt::format("{} chunks: only a pipeline has them", p.chunks);
    if (p.chunks > 1 && p.micro_batches % p.pp != 0)
        return fmt::format("{} chunks: {} micro-batches are no multiple of pp {}", p.chunks,
                           p.micro_batches, p.pp);
    if (p.interleaves() && (p.chunks > 1 || p.zero == 3 || p.recompute == Recompute::full))
        return "--ep-overlap batches: neither interleaved stages, nor ZeRO-3, nor --recompute full";
    if (p.interleaves() && p.micro_batches == 1)
        return "--ep-overlap batches: one micro-batch has no other one to run beside";
    if (p.fp8)
        for (const int64_t size :
             {p.micro_batch * f.shape.seq / p.cp, c.hidden, c.q_size() / p.tp, c.ffn / p.tp})
            if (size % 16 != 0)
                return fmt::format("fp8: {} rows or columns are no multiple of 16", size);
    return "";
}

class Planner {
public:
    explicit Planner(const PlanFor& what)
        : for_(what), memory_(what.shape), cost_(for_.shape, for_.hardware, memory_) {}

    // Calls see(plan) for every layout. (It leaves out a cp with which a chunk of a sequence, of
    // which a rank has two, is shorter than a tile of attention.)
    template <class See>
    void for_each(See see) const {
        constexpr int64_t tile = 16;
        // Returns the divisors of a number, or only the given one.
        const auto sizes = [](const std::optional<int64_t>& given, int64_t of) {
            return given ? std::vector<int64_t>(of % *given == 0 ? 1 : 0, *given) : divisors(of);
        };
        const Fixed& fixed = for_.fixed;
        for (const int64_t pp : sizes(fixed.pp, for_.gpus))
            for (const int64_t tp : sizes(fixed.tp, for_.gpus / pp))
                for (const int64_t cp : sizes(fixed.cp, for_.gpus / pp / tp)) {
                    if (cp > 1 && for_.shape.seq / (2 * cp) < tile) {
                        stands_against(
                            "cp {}: its chunks of a sequence, two a rank, would be "
                            "shorter than {} tokens",
                            cp, tile);
                        continue;
                    }
                    for (const int64_t ep : sizes(fixed.ep, for_.gpus / pp / tp / cp)) {
                        Plan plan = for_.like;
                        plan.dp = for_.gpus / pp / tp / cp / ep;
                        plan.tp = tp, plan.cp = cp, plan.ep = ep, plan.pp = pp;
                        plan.fp8 = for_.fp8;
                        if (plan.dp == fixed.dp.value_or(plan.dp)) with_batch(plan, see);
                    }
                }
    }

    // Returns all layouts that fit. The first ones that do not fit matter only while none does.
    Planned plan() {
        Planned all;
        all.smallest.memory.most = INT64_MAX;
        why_not_.clear(), none_as_given_ = false;
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
        all.why_not = none_as_given_ ? "what is given leaves none" : why_not_;
        std::ranges::sort(all.fit, faster);
        // The best layouts that a run accepts. Those behind them are only counted.
        std::vector<Ranked> best;
        size_t asked = 0;
        for (; asked < all.fit.size() && best.size() < 40; ++asked) {
            const std::string reason = for_.refused(all.fit[asked].plan);
            if (reason.empty())
                best.push_back(all.fit[asked]), simulate(best.back());
            else if (all.refused++ == 0)
                all.why_refused = reason;
        }
        std::ranges::sort(best, faster);
        all.fit.erase(all.fit.begin(), all.fit.begin() + std::ptrdiff_t(asked));
        all.fit.insert(all.fit.begin(), best.begin(), best.end());
        return all;
    }
    // Returns whether any layout fits: once one does, the others are skipped.
    bool any_fits() {
        bool found = false;
        for_each([&](const Plan& plan) {
            found = found || (memory_.at_least(plan) <= for_.limit() &&
                              memory_.worst(plan).most <= for_.limit());
        });
        return found;
    }
    // Returns one layout's cost and memory, whether it fits or not.
    Ranked one(const Plan& plan) {
        Ranked ranked{.plan = plan, .cost = cost_.of(plan), .memory = memory_.worst(plan)};
        ranked.seconds = ranked.cost.seconds();
        simulate(ranked);
        return ranked;
    }
    // Runs the passes of a step in 05's simulator, with the ranks' own costs.
    pipeline::Simulation simulated(const Plan& plan) {
        const Schedule schedule = plan_schedule(plan, int(plan.micro_batches));
        Costs costs{.links = cost_.messages(plan)};
        const std::vector<UnitCost> ranks = cost_.rank_costs(plan);
        for (int s = 0; s < schedule.stages; ++s) {
            const UnitCost& of = ranks[size_t(s % int(plan.pp))];
            costs.stages.push_back(
                {of.forward.all() / plan.chunks, of.backward.all() / plan.chunks, 0});
        }
        return pipeline::simulate(schedule, costs);
    }
    double mfu(const Ranked& r) const { return cost_.mfu(r.plan, r.seconds); }
    const PlanFor& what() const { return for_; }
    void set_gpus(int64_t gpus) { for_.gpus = gpus; }
    MemoryModel& memory() { return memory_; }
    CostModel& cost() { return cost_; }

private:
    // Keeps the first reason against a layout.
    template <class... Values>
    void stands_against(fmt::format_string<const Values&...> reason,
                        const Values&... values) const {
        if (why_not_.empty()) why_not_ = fmt::format(reason, values...);
    }
    // Calls see(plan) for every way in which these ranks can take the batch.
    template <class See>
    void with_batch(Plan plan, See& see) const {
        const Fixed& fixed = for_.fixed;
        const int64_t replicas = plan.dp * plan.ep;
        if (for_.sequences % replicas != 0) {
            stands_against("{} sequences a step are not shared by dp x ep = {}", for_.sequences,
                           replicas);
            return;
        }
        const bool shards = replicas * plan.cp > 1;
        const int64_t own = for_.sequences / replicas;
        std::vector<int64_t> micro_batches = {1, 2, 4, 8, 16, 32};
        std::vector<int> chunks = {1, 2, 4, 8};
        if (fixed.micro_batch) micro_batches = {*fixed.micro_batch};
        if (fixed.chunks) chunks = {*fixed.chunks};
        for (const int64_t micro_batch : micro_batches) {
            plan.micro_batch = micro_batch, plan.micro_batches = own / micro_batch;
            if (own % micro_batch != 0) {
                stands_against("{} of a replica are not micro-batches of {}", own, micro_batch);
                continue;
            }
            for (const int chunks_per_rank : chunks) {
                plan.chunks = chunks_per_rank;
                if (const std::string reason = why_not(for_, plan); !reason.empty()) {
                    stands_against("{}", reason);
                    continue;
                }
                // If there is no rank to share with, ZeRO has nothing to shard.
                // Without shards there is no --shard-size.
                for (plan.zero = plan.states.shard_size > 0;
                     plan.zero <= (shards ? 3 : fixed.zero.value_or(0)); ++plan.zero)
                    for (const Recompute recompute : {Recompute::none, Recompute::full}) {
                        plan.recompute = recompute;
                        if (fixed.allows(plan))
                            see(plan);
                        else
                            none_as_given_ = true;
                    }
            }
        }
    }
    // Lets 05's simulator run the pipeline with its ranks' own costs; the difference from the
    // formula counts as bubble. (Not for the longest pipelines, whose simulation would take
    // seconds.)
    void simulate(Ranked& r) {
        if (r.plan.pp == 1 || r.plan.pp * r.plan.micro_batches * r.plan.chunks > 20'000) return;
        const double passes = simulated(r.plan).seconds,
                     formula = r.cost.seconds() - r.cost.data - r.cost.optimizer;
        r.cost.bubble += passes - formula;
        r.seconds = r.cost.seconds();
    }

    PlanFor for_;
    MemoryModel memory_;
    CostModel cost_;
    mutable std::string why_not_;
    mutable bool none_as_given_ = false;  // some can be cut, but differ from the given sizes
};

}  // namespace ultrascale::five_d
