// What --plan is asked for: axes that are given are kept, what it proposes runs, and an awkward
// number of GPUs is told which one near it works.
#include <gtest/gtest.h>

#include <random>

#include "09_5d_parallel/planner/asked.h"
#include "09_5d_parallel/planner/nearest.h"
#include "tests/test_files.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
using namespace ultrascale::data_parallel;
using namespace ultrascale::expert_parallel;
using namespace ultrascale::five_d;
using namespace ultrascale::mixed_precision;
using namespace ultrascale::pipeline;
using namespace ultrascale::tensor_parallel;
using namespace ultrascale::zero;
namespace {

PlanFor plan_for(const std::string& model, int64_t gpus, int64_t sequences, int64_t seq = 4096) {
    return {.shape = {.config = preset(model),
                      .model = {.dtype = DType::bf16},
                      .grad_dtype = DType::fp32,
                      .micro_batch = 1,
                      .seq = seq},
            .hardware = find_hardware("h100"),
            .gpus = gpus,
            .sequences = sequences};
}

TEST(PlannerFixed, SearchesTheRestOnly) {
    PlanFor what = plan_for("llama-3-8b", 32, 128);
    const Planned all = Planner(what).plan();
    what.fixed = {.tp = 8, .pp = 2, .zero = 1, .recompute = Recompute::full};
    const Planned some = Planner(what).plan();
    ASSERT_GT(some.fit.size(), 3u);
    int64_t as_many = 0;
    for (const Ranked& r : all.fit) as_many += what.fixed.allows(r.plan);
    EXPECT_EQ(int64_t(some.fit.size()), as_many);
    for (const Ranked& r : some.fit) EXPECT_TRUE(r.plan.tp == 8 && r.plan.pp == 2) << r.plan.tp;

    // A value that the search does not try by itself; and one that cannot be.
    what.fixed = {.micro_batch = 64};
    what.sequences = 2048;
    for (const Ranked& r : Planner(what).plan().fit) EXPECT_EQ(r.plan.micro_batch, 64);
    what.fixed = {.tp = 3};
    EXPECT_EQ(Planner(what).plan().considered, 0);
    what.gpus = 48;
    const Planned none = Planner(what).plan();
    EXPECT_EQ(none.considered, 0);
    EXPECT_EQ(none.why_not, "tp 3: 32 heads with 8 of keys are not shared equally");
}

// Not what stands against some other layout.
TEST(PlannerFixed, SaysWhyNothingIsLeft) {
    PlanFor what = plan_for("llama-3-8b", 8, 256);
    const auto why = [&](const Fixed& fixed) {
        what.fixed = fixed;
        const Planned none = Planner(what).plan();
        EXPECT_EQ(none.considered, 0);
        return none.why_not;
    };
    EXPECT_EQ(why({.micro_batches = 3}), "what is given leaves none");
    EXPECT_EQ(why({.dp = 3}), "");  // it does not divide the GPUs
    EXPECT_EQ(why({.pp = 1, .chunks = 2}), "2 chunks: only a pipeline has them");
    EXPECT_EQ(why({.dp = 4, .pp = 2, .micro_batch = 64, .chunks = 2}),
              "2 chunks: 1 micro-batches are no multiple of pp 2");
    what.shape.seq = 128;
    EXPECT_EQ(why({.cp = 8}),
              "cp 8: its chunks of a sequence, two a rank, would be shorter than 16 tokens");
}

// How the techniques are done may exclude some sizes, but no search.
TEST(PlannerFixed, UlyssesDividesCp) {
    PlanFor what = plan_for("llama-3.2-1b", 8, 64);
    what.like.context.variant = Variant::usp, what.like.context.ulysses = 4;
    Planner planner(what);
    const Planned all = planner.plan();
    int64_t shared = 0;
    for (const Ranked& r : all.fit) {
        EXPECT_TRUE(r.plan.cp == 1 || r.plan.cp % 4 == 0) << r.plan.cp;
        shared += r.plan.cp > 1;
    }
    EXPECT_GT(shared, 0);
    EXPECT_EQ(why_not(what, {.cp = 2, .pp = 4, .context = what.like.context}),
              "cp 2: --ulysses 4 must divide it");
}

// The best ten of a dozen random cases pass the run's own check, and why_not() alone has left out
// what it refuses.
TEST(PlannerAsked, ProposesNothingThatARunRefuses) {
    std::mt19937 random(9);
    const auto one_of = [&]<class T>(const std::vector<T>& values) {
        return values[random() % values.size()];
    };
    int proposed = 0;
    for (int round = 0; round < 12; ++round) {
        const std::string model = one_of(std::vector<std::string>{
            "nano", "char", "llama-3.2-1b", "llama-3-8b", "nano-moe", "moe-16b"});
        const bool moe = model.find("moe") != model.npos;
        Options options;
        options.model = model, options.with_experts = true;
        options.dtype = DType::bf16, options.fp32_grads = true;
        Techniques techniques;
        if (!moe && random() % 2 == 0) techniques.precision.recipe = *find_recipe("tensor");
        PlanFor what = plan_for(model, one_of(std::vector<int64_t>{1, 6, 8, 12, 20, 48}),
                                one_of(std::vector<int64_t>{12, 24, 96, 120}),
                                one_of(std::vector<int64_t>{96, 120, 400, 1024, 2000}));
        what.fp8 = techniques.precision.recipe.fp8();
        const Planned all = Planner(what).plan();
        SCOPED_TRACE(fmt::format("{} on {}, {} sequences of {}{}", model, what.gpus, what.sequences,
                                 what.shape.seq, what.fp8 ? ", fp8" : ""));
        for (size_t i = 0; i < std::min<size_t>(10, all.fit.size()); ++i, ++proposed)
            EXPECT_EQ(why_refused(options, what.shape, techniques, all.fit[i].plan), "")
                << describe(all.fit[i].plan);
    }
    EXPECT_GT(proposed, 40);
    // What the run refuses is dropped, whatever the formulas say, and however many that are.
    PlanFor what = plan_for("nano", 8, 64, 1024);
    what.fixed.zero = 1;
    const Planned all = Planner(what).plan();
    const auto fastest_40 = [&](const Plan& plan) {
        return std::ranges::any_of(std::span(all.fit).first(40), [&](const Ranked& r) {
            return describe(r.plan) == describe(plan);  // and some more
        });
    };
    what.refused = [&](const Plan& plan) { return fastest_40(plan) ? "no" : ""; };
    const Planned slower = Planner(what).plan();
    EXPECT_GE(slower.refused, 40);
    ASSERT_GT(slower.fit.size(), 40u);
    EXPECT_EQ(slower.fit.size() + size_t(slower.refused), all.fit.size());
    for (const Ranked& r : std::span(slower.fit).first(10)) EXPECT_FALSE(fastest_40(r.plan));
    what.refused = [](const Plan& plan) { return fmt::format("no {}", plan.zero); };
    const Planned none = Planner(what).plan();
    EXPECT_TRUE(none.fit.empty());
    EXPECT_EQ(none.refused, int64_t(all.fit.size()));
    EXPECT_EQ(none.why_refused, "no 1");
}

TEST(PlannerAsked, NodesAreThoseOfTheOptions) {
    PlannerOptions given;
    Options options;
    options.dtype = DType::bf16, options.node_size = 4, options.inter_gbps = 100;
    const Hardware h = asked_hardware(given, options);
    EXPECT_EQ(h.nodes.ranks, 4);
    EXPECT_EQ(h.between.bytes_per_second, 12.5e9);
    EXPECT_EQ(h.inside.bytes_per_second, find_hardware("h100").inside.bytes_per_second);
    // A preset's cards may be faster; those that were measured are not.
    options.inter_gbps = 800;
    EXPECT_EQ(asked_hardware(given, options).between.bytes_per_second, 100e9);
    EXPECT_EQ(asked_hardware(given, options).between.reduced_per_second, 100e9);
    const test::TempDir directory;
    given.hardware = directory / "this.json";
    write_file(given.hardware, file_of(find_hardware("h100")));
    EXPECT_EQ(asked_hardware(given, options).between.bytes_per_second, 48e9);
    EXPECT_EQ(asked_hardware(given, options).between.reduced_per_second, 48e9);
    options.node_size = 0, options.inter_gbps = 0;
    EXPECT_EQ(asked_hardware(given, options).nodes.ranks, 8);
}

TEST(PlannerNearest, IsTheNearestBelowThatFits) {
    for (const auto& [gpus, sequences] : {std::pair<int64_t, int64_t>{13, 64}, {37, 256}}) {
        PlanFor what = plan_for("llama-3.2-1b", gpus, sequences);
        what.fixed.pp = 1;  // else a pipeline of 13 uneven stages fits
        EXPECT_FALSE(Planner(what).any_fits());
        const int64_t nearest = nearest_that_fits(what);
        EXPECT_EQ(nearest, gpus == 13 ? 8 : 32);
    }
    // Too little memory for any smaller number: the nearest above.
    PlanFor what = plan_for("llama-3-70b", 8, 64);
    const int64_t nearest = nearest_that_fits(what);
    ASSERT_GT(nearest, 8);
    what.gpus = nearest;
    EXPECT_TRUE(Planner(what).any_fits());
    what.gpus = nearest - 1;
    EXPECT_FALSE(Planner(what).any_fits());
}

TEST(PlannerNearest, FewerAreAsFastAsAnAwkwardNumber) {
    PlanFor what = plan_for("llama-3-8b", 100, 256);
    what.fixed = {.zero = 1, .recompute = Recompute::none};
    Planner planner(what);
    const Planned all = planner.plan();
    ASSERT_FALSE(all.fit.empty());
    const Ranked& best = all.fit.front();
    const std::optional<Fewer> fewer = as_fast_with_fewer(what, planner.mfu(best), best.seconds);
    ASSERT_TRUE(fewer);
    EXPECT_LT(fewer->gpus, 100);
    EXPECT_LE(fewer->best.seconds, best.seconds);
    for (int64_t gpus = fewer->gpus + 1; gpus < 100; ++gpus) {
        planner.set_gpus(gpus);
        const Planned other = planner.plan();
        EXPECT_TRUE(other.fit.empty() || other.fit.front().seconds > best.seconds) << gpus;
    }
    // 96 = 3 x 32 is a good number.
    what.gpus = 96;
    Planner even(what);
    const Ranked best_of_96 = even.plan().fit.front();
    EXPECT_FALSE(as_fast_with_fewer(what, even.mfu(best_of_96), best_of_96.seconds));
}

}  // namespace
}  // namespace ultrascale
