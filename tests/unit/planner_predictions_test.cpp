// What the planner's closed formulas send over a rank's network card and hold, beside what a run's
// own prediction says, which tests of the chapters compare with what was counted.
#include <gtest/gtest.h>

#include "09_5d_parallel/planner/cost.h"
#include "09_5d_parallel/planner/imagined.h"
#include "09_5d_parallel/planner/memory.h"
#include "09_5d_parallel/planner/spread.h"
#include "tests/only_cards.h"

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

StepShape shape_of(const std::string& model) {
    return {.config = preset(model),
            .model = {.dtype = DType::bf16},
            .grad_dtype = DType::fp32,
            .micro_batch = 1,
            .seq = 4096};
}

// The size of a group that is no axis.
int ranks_of(const std::string& group, const Techniques& t) {
    return group == "ulysses" ? t.context.ulysses_degree()
           : group == "ring"  ? t.context.ring_degree()
           : group == "kv"    ? t.axes.tp / 8  // of both models' key heads
                              : t.axes.dp * t.axes.tp * t.axes.cp * t.axes.ep * t.axes.pp;
}

// Over the card of the rank that sends most, in a step: by the prediction of its calls.
double predicted_bytes(const std::string& model, const Plan& plan, const Nodes& nodes) {
    StepShape shape = shape_of(model);
    Options options;
    options.model = model, options.dtype = DType::bf16, options.fp32_grads = true;
    options.with_experts = true;
    options.grad_accum = plan.micro_batches;
    shape.micro_batch = plan.micro_batch, shape.model.recompute = plan.recompute;
    const Techniques t = plan.techniques();
    double bytes = 0;
    const PredictedCommunication calls = predict_imagined(options, shape, t, 0).communication;
    for (const auto& [group, kinds] : calls.groups)
        for (size_t k = 0; k < kinds.size(); ++k) {
            if (kinds[k].calls == 0) continue;
            const Spread spread = spread_of(group, ranks_of(group, t), t.axes, nodes);
            // Rows are of the sizes that a router chooses: what is known of them is what is sent.
            const double S = Collective(k) == Collective::all_to_all
                                 ? kinds[k].sent * spread.ranks / (spread.ranks - 1)
                                 : double(kinds[k].bytes);
            bytes += bytes_over_card(Collective(k), S, spread, nodes.crossing);
        }
    return bytes;
}

struct Case {
    const char* model;
    Plan plan;
};
const std::vector<Case> cases = {
    {"llama-3.2-1b", {.dp = 8}},
    {"llama-3.2-1b", {.dp = 8, .zero = 1, .micro_batches = 2}},
    {"llama-3.2-1b", {.dp = 8, .zero = 2, .micro_batches = 2}},
    {"llama-3.2-1b", {.dp = 8, .zero = 3, .micro_batches = 3}},
    {"llama-3.2-1b", {.dp = 8, .zero = 3, .micro_batches = 3, .states = {.keep_gathered = true}}},
    {"llama-3.2-1b", {.dp = 8, .zero = 3, .states = {.gathers = Sent::fp8, .sums = Sent::fp8}}},
    {"llama-3.2-1b", {.dp = 8, .zero = 1, .micro_batches = 2, .states = {.shard_size = 4}}},
    {"llama-3.2-1b", {.dp = 8, .zero = 2, .micro_batches = 2, .states = {.shard_size = 2}}},
    {"llama-3.2-1b", {.dp = 8, .zero = 3, .micro_batches = 3, .states = {.shard_size = 8}}},
    {"llama-3.2-1b", {.dp = 2, .tp = 4}},
    {"llama-3.2-1b",
     {.dp = 2,
      .tp = 4,
      .order = {PlanAxis::dp, PlanAxis::tp, PlanAxis::cp, PlanAxis::ep, PlanAxis::pp}}},
    {"llama-3.2-1b", {.tp = 8, .micro_batches = 2}},
    {"llama-3.2-1b", {.tp = 8, .recompute = Recompute::full}},
    {"llama-3.2-1b", {.tp = 8, .tensor = {.sequence_parallel = true, .keep_gathered = true}}},
    {"llama-3.2-1b", {.tp = 8, .tensor = {.sequence_parallel = false}}},
    {"llama-3.2-1b", {.cp = 8}},
    {"llama-3.2-1b", {.cp = 8, .recompute = Recompute::full}},
    {"llama-3.2-1b", {.cp = 8, .context = {.backward = RingBackward::restarted}}},
    {"llama-3.2-1b", {.cp = 8, .context = {.backward = RingBackward::kept}}},
    {"llama-3.2-1b", {.cp = 8, .context = {.variant = Variant::all_gather}}},
    {"llama-3.2-1b",
     {.cp = 8, .context = {.variant = Variant::ulysses, .layout = Layout::contiguous}}},
    {"llama-3.2-1b", {.cp = 8, .context = {.variant = Variant::usp, .ulysses = 4}}},
    {"llama-3.2-1b", {.cp = 8, .context = {.variant = Variant::usp, .ulysses = 2}}},
    {"llama-3.2-1b", {.tp = 2, .cp = 4}},
    {"llama-3.2-1b", {.dp = 2, .cp = 4}},
    {"moe-16b", {.ep = 8, .zero = 1}},
    {"moe-16b", {.ep = 8, .zero = 1, .recompute = Recompute::full}},
    {"moe-16b", {.dp = 2, .ep = 4, .zero = 1}},
    {"moe-16b", {.ep = 8, .zero = 1, .experts = {.dispatch = Dispatch::rank}}},
    {"moe-16b", {.tp = 2, .ep = 4, .zero = 1}},
};

TEST(PlannerLinks, CardsSendWhatARunPredicts) {
    for (const Crossing crossing : {Crossing::exchange, Crossing::ring, Crossing::rings})
        for (const auto& [model, plan] : cases) {
            const Nodes nodes{.ranks = 4, .crossing = crossing};
            const StepShape shape = shape_of(model);
            MemoryModel memory(shape);
            const StepCost cost = CostModel(shape, only_cards(nodes), memory).of(plan);
            const double by_run = predicted_bytes(model, plan, nodes);
            EXPECT_GT(by_run, 0);
            EXPECT_NEAR((cost.tensor + cost.context + cost.experts + cost.data) / by_run, 1, 0.01)
                << model << ", " << describe(plan.techniques()) << ", "
                << crossing_names[size_t(crossing)];
        }
}

const ExpertOptions beside{.dispatch = Dispatch::rank, .overlap = ExpertOverlap::batches};

// With one piece of the sequence each, the last rank's share beyond the mean is added.
TEST(PlannerCost, OfAttentionIsThatOfThePairsThatAMaskLeaves) {
    constexpr int64_t T = 8192, W = 1024, P = 2048, cp = 4;
    const auto seconds = [](int64_t window, int64_t prefix, int64_t ranks) {
        StepShape shape = shape_of("llama-3-8b");
        shape.seq = T, shape.config.window = window, shape.config.prefix = prefix;
        Plan plan{.cp = ranks};
        plan.context.layout = Layout::contiguous;
        Hardware hardware = find_hardware("h100");
        hardware.memory_rate = INFINITY, hardware.operation = 0;  // merges take no time
        double attention = 0, beyond_mean = 0;
        LayerCosts(shape, hardware, plan)
            .for_each_part(false, [&](const std::string& part, const UnitCost& cost) {
                if (part == "attention") attention = cost.forward.compute;
                if (part == "cp") beyond_mean = cost.forward.compute;
            });
        return std::pair(attention, beyond_mean);
    };
    const double causal = T * T / 2, window = T * W - W * (W - 1) / 2;
    const double whole = seconds(0, 0, 1).first;
    EXPECT_NEAR(seconds(W, 0, 1).first / whole, window / causal, 1e-9);
    EXPECT_NEAR(seconds(0, P, 1).first / whole, (causal + T / 2 + P * (P - 1) / 2) / causal, 1e-9);
    // The last rank attends to W keys for each of its tokens.
    const double more = seconds(0, 0, cp).second - seconds(W, 0, cp).second;
    EXPECT_NEAR(more * cp / whole, (1 - 1.0 / cp) - (T * W - window) / causal, 1e-3);
}

// With nothing to hide it, all of a ring's travel is waited for. With a window that is that of the
// rank that sends the most, as a run predicts its bytes.
TEST(PlannerCost, OfARingIsThatOfTheKeysThatAWindowLetsTravel) {
    constexpr int64_t T = 8192, cp = 4;
    StepShape shape = shape_of("llama-3-8b");
    shape.seq = T;
    const Hardware hardware = find_hardware("h100");
    for (const Layout layout : {Layout::contiguous, Layout::zigzag})
        for (const int64_t window : {1024, 3000}) {
            SCOPED_TRACE(fmt::format("{} {}", int(layout), window));
            Plan plan{.cp = cp};
            plan.context.layout = layout;
            const auto waited_for = [&](int64_t w) {
                shape.config.window = w;
                UnitCost cost;
                LayerCalls(shape, hardware, plan)
                    .add_context(cost, 0, 0, double(shape.config.kv_size()));
                return cost.forward.context + cost.backward.context;
            };
            const auto sent = [&](int64_t w) {
                shape.config.window = w;
                ContextOptions o = plan.context;
                o.cp = int(cp);
                int64_t most = 0;
                for (int rank = 0; rank < cp; ++rank) {
                    Prediction p;
                    add_attention(p, shape, o, 1, rank);
                    most = std::max(most, int64_t(p.communication.of(Collective::send_recv).sent));
                }
                return double(most);
            };
            const double seconds = waited_for(window) / waited_for(0);
            EXPECT_NEAR(seconds / (sent(window) / sent(0)), 1, 0.1);
        }
}

// Forwards and backwards that run together: the formula beside a simulation of all actions.
TEST(PlannerCost, OfMicroBatchesBesideEachOtherIsAsSimulated) {
    const StepShape shape = shape_of("moe-16b");
    const int64_t dense = shape.config.experts.first_dense;
    for (const double slower : {0.5, 1.0, 4.0})
        for (const int64_t pp : {1, 2, 4}) {
            SCOPED_TRACE(fmt::format("links {} times as slow, pp {}", slower, pp));
            Hardware hardware = find_hardware("h100");
            hardware.between.bytes_per_second /= slower;
            Plan plan{.ep = 64, .pp = pp, .micro_batches = 8 * pp, .experts = beside};
            MemoryModel memory(shape);
            CostModel model(shape, hardware, memory);
            const StepCost cost = model.of(plan);
            const LayerCosts layers(shape, hardware, plan);
            Costs costs;
            for (const Stage& stage : memory.stages(plan)) {
                const UnitCost one = model.rank_costs(plan)[costs.stages.size()];
                costs.stages.push_back({one.forward.all(), one.backward.all(), 0});
                StageTurns turns =
                    layers.turns(stage.last_layer - std::max(stage.first_layer, dense));
                // What is no layer with experts comes after the last rows, or before the first.
                turns.forward.compute.back() += one.forward.all() - turns.forward.alone();
                turns.backward.compute.front() += one.backward.all() - turns.backward.alone();
                costs.turns.push_back(turns);
            }
            const double simulated =
                simulate(one_f_one_b_overlap(int(pp), int(plan.micro_batches)), costs).seconds;
            const double by_formula =
                cost.compute + cost.experts + cost.uneven + cost.bubble + cost.tensor;
            EXPECT_NEAR(by_formula / simulated, 1, 0.03);
            plan.experts.overlap = ExpertOverlap::none;
            EXPECT_LT(cost.seconds(), model.of(plan).seconds());
        }
}

TEST(PlannerMemory, IsAsARunPredicts) {
    struct Case {
        const char* model;
        Plan plan;
    };
    const Case cases[] = {
        {"llama-3.2-1b", {.dp = 4, .zero = 0, .micro_batch = 2, .micro_batches = 2}},
        {"llama-3.2-1b", {.dp = 4, .pp = 4, .zero = 1, .micro_batches = 8}},
        {"llama-3-8b", {.dp = 8, .zero = 2, .micro_batches = 2}},
        {"llama-3-8b", {.dp = 8, .zero = 3, .micro_batch = 2, .micro_batches = 1}},
        {"llama-3-8b", {.dp = 8, .zero = 3, .micro_batches = 4}},
        {"llama-3-8b", {.dp = 8, .zero = 3, .micro_batches = 2, .states = {.shard_size = 4}}},
        {"llama-3-8b", {.dp = 8, .zero = 1, .micro_batches = 2, .states = {.shard_size = 2}}},
        {"llama-3-8b", {.dp = 8, .zero = 3, .micro_batches = 4, .states = {.keep_gathered = true}}},
        {"llama-3-8b", {.dp = 2, .tp = 4, .pp = 2, .zero = 1, .micro_batches = 8}},
        {"llama-3-8b", {.dp = 2, .tp = 2, .cp = 2, .pp = 2, .zero = 1, .micro_batches = 8}},
        {"llama-3-8b", {.dp = 2, .tp = 2, .pp = 4, .zero = 1, .micro_batches = 16, .chunks = 2}},
        {"llama-3-8b",
         {.dp = 4, .cp = 4, .zero = 3, .micro_batches = 2, .recompute = Recompute::full}},
        {"llama-3-70b", {.dp = 4, .tp = 8, .pp = 8, .zero = 1, .micro_batches = 32}},
        {"llama-3-70b", {.dp = 16, .tp = 8, .pp = 2, .zero = 3, .micro_batches = 8}},
        {"moe-16b", {.dp = 2, .ep = 8, .pp = 2, .zero = 1, .micro_batches = 4}},
        {"moe-16b", {.dp = 2, .tp = 2, .ep = 8, .zero = 1, .micro_batches = 2}},
        {"moe-16b", {.ep = 8, .zero = 1, .micro_batches = 3, .experts = beside}},
        {"moe-16b", {.ep = 8, .pp = 2, .zero = 1, .micro_batches = 8, .experts = beside}},
    };
    for (const auto& [model, plan] : cases) {
        StepShape shape = shape_of(model);
        MemoryModel cheap(shape);
        Options options;
        options.model = model, options.dtype = DType::bf16, options.fp32_grads = true;
        options.with_experts = true;
        options.grad_accum = plan.micro_batches;
        shape.micro_batch = plan.micro_batch, shape.model.recompute = plan.recompute;
        for (const int pp_rank : {0, int(plan.pp) - 1}) {
            const MemoryEstimate exact =
                predict_imagined(options, shape, plan.techniques(), pp_rank).memory;
            const MemoryModel::RankMemory held = cheap.of(plan, pp_rank);
            const MemoryEstimate& got = held.memory;
            SCOPED_TRACE(fmt::format("{}, {}, pipeline rank {}", model, describe(plan), pp_rank));
            const auto near = [](int64_t a, int64_t b, double bound) {
                EXPECT_NEAR(double(a), double(b), bound * double(b) + 1e6);
            };
            near(got.parameters, exact.parameters, 1e-3);
            near(got.gradients, exact.gradients, 1e-3);
            near(got.optimizer, exact.optimizer, 1e-3);
            near(got.peak_activations, exact.peak_activations, 0.01);
            near(got.peak_communication, exact.peak_communication, 0.05);
            near(got.total(), exact.total(), plan.zero < 2 ? 0.01 : 0.02);
            // All together at one moment: no more than the sum of all highest moments.
            EXPECT_LE(held.most, got.total());
            EXPECT_GT(held.most, got.parameters + got.gradients + got.optimizer);
            if (plan.zero < 2) {
                EXPECT_EQ(held.most, got.total());
            }
        }
    }
}

}  // namespace
}  // namespace ultrascale
