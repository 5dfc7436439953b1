// 05_pipeline: how the model is cut into stages, which messages a schedule needs and when they are
// expected, and what a rank holds meanwhile. None of these tests needs several ranks.
#include <gtest/gtest.h>

#include <numeric>

#include "05_pipeline/2_schedules/schedules.h"
#include "05_pipeline/3_cut.h"
#include "05_pipeline/lab/memory_walk.h"

namespace ultrascale {
using namespace ultrascale::pipeline;
namespace {

StepShape shape_of(const LlamaConfig& config, int64_t seq, ModelOptions model = {}) {
    return {.config = config, .model = model, .micro_batch = 1, .seq = seq};
}
std::vector<int64_t> layers_of(const std::vector<Stage>& stages) {
    std::vector<int64_t> layers;
    for (const Stage& stage : stages) layers.push_back(stage.last_layer - stage.first_layer);
    return layers;
}

// ---- stages -------------------------------------------------------------------------------------

TEST(PipelineStages, TheHeadOfLlama3Weighs2Point4Layers) {
    const StepShape shape = shape_of(preset("llama-3-8b"), 0);  // without attention's scores
    EXPECT_NEAR(total(head_cost(shape)) / total(layer_cost(shape)), 2.4, 0.05);
}

TEST(PipelineStages, TheLastStageGetsFewerLayers) {
    LlamaConfig config = preset("llama-3-8b");
    const StepShape shape = shape_of(config, 4096);
    const std::vector<int64_t> layers = layers_of(cut(shape, 4, "auto"));
    EXPECT_EQ(layers, (std::vector<int64_t>{9, 9, 8, 6}));
    EXPECT_EQ(layers_of(cut(shape, 3, "11,11,10")), (std::vector<int64_t>{11, 11, 10}));
}

// Tries every way to cut few layers.
TEST(PipelineStages, NoOtherCutHasACheaperSlowestStage) {
    for (const int64_t vocab : {100, 3000, 30000}) {
        LlamaConfig config = preset("nano");
        config.vocab = vocab, config.layers = 9;
        for (const Recompute recompute : {Recompute::none, Recompute::full}) {
            const StepShape shape = shape_of(config, 128, {.recompute = recompute});
            const auto slowest = [&](const std::vector<Stage>& stages) {
                double most = 0;
                for (const Stage& stage : stages)
                    most = std::max(most, total(stage_cost(shape, stage)));
                return most;
            };
            for (int64_t a = 1; a <= 7; ++a)
                for (int64_t b = 1; a + b <= 8; ++b)
                    EXPECT_LE(slowest(cut(shape, 3, "auto")),
                              slowest(stages_of({a, b, 9 - a - b})) * (1 + 1e-9));
        }
    }
}

TEST(PipelineStages, AStagesUnitsAreTheModels) {
    const std::vector<Stage> stages = stages_of({2, 1, 3});
    EXPECT_TRUE(stages[0].embedding && !stages[0].head);
    EXPECT_FALSE(stages[1].embedding || stages[1].head);
    EXPECT_TRUE(stages[2].head && !stages[2].embedding);
    EXPECT_EQ(stages[1].first_layer, 2);
    EXPECT_EQ(stages[2].last_layer, 6);
}

TEST(PipelineStages, RefusesOtherCuts) {
    const StepShape shape = shape_of(preset("nano"), 16);
    for (const char* split : {"", ",", "4,x", "4,,4", "4,4,", " 4,4", "4.0,4", "-4,12", "4,5",
                              "4,4,4", "0,8", "99999999999999999999,1"})
        EXPECT_THROW(cut(shape, 2, split), UserError) << split;
    EXPECT_THROW(cut(shape, 9, "auto"), UserError);
}

// ---- messages -----------------------------------------------------------------------------------

// Returns every schedule that exists for p ranks and m micro-batches.
std::vector<Schedule> schedules_of(int p, int m) {
    std::vector<Schedule> all;
    for (const std::string& name : schedule_names()) {
        try {
            all.push_back(make_schedule(name, p, m));
        } catch (const UserError&) {
        }
    }
    return all;
}
void for_many(const std::function<void(const Schedule&, bool post_validation)>& visit) {
    for (const int p : {1, 2, 3, 4, 7, 8})
        for (const int m : {1, 2, p, 2 * p, 2 * p + 3, 4 * p})
            for (const Schedule& schedule : schedules_of(p, m))
                for (const bool post_validation : {false, true}) {
                    SCOPED_TRACE(fmt::format("{}: p {} m {}", schedule.name, p, m));
                    visit(schedule, post_validation);
                }
}

// Runs the ranks like the executor, but a message is only sent once its receive has been posted,
// and a rank that releases a tensor waits until then (a rendezvous, as in NCCL). Time does not
// matter: any rank that can go on does.
TEST(PipelineMessages, NobodyWaitsForever) {
    for_many([](const Schedule& schedule, bool post_validation) {
        const MessagePlan plan(schedule, post_validation);
        struct Passing {
            bool posted = false, sent = false;
        };
        std::vector<Passing> messages(plan.messages().size());
        struct Rank {
            int action = 0;
            bool posted = false;  // the receives before this action
        };
        std::vector<Rank> ranks(size_t(schedule.ranks()));
        const auto passed = [&](int m) {
            return plan.messages()[size_t(m)].local() ||
                   (messages[size_t(m)].posted && messages[size_t(m)].sent);
        };
        for (bool progress = true; progress;) {
            progress = false;
            for (int r = 0; r < schedule.ranks(); ++r) {
                Rank& at = ranks[size_t(r)];
                if (at.action > plan.actions(r)) continue;
                if (!at.posted) {
                    for (const int m : plan.posts(r, at.action)) messages[size_t(m)].posted = true;
                    at.posted = progress = true;
                }
                if (!std::ranges::all_of(plan.releases(r, at.action), passed)) continue;
                if (at.action < plan.actions(r)) {
                    const int in = plan.input(r, at.action), out = plan.output(r, at.action);
                    if (in >= 0 && !(messages[size_t(in)].sent && passed(in))) continue;
                    if (out >= 0) messages[size_t(out)].sent = true;
                }
                ++at.action, at.posted = false, progress = true;
            }
        }
        for (int r = 0; r < schedule.ranks(); ++r)
            EXPECT_EQ(ranks[size_t(r)].action, plan.actions(r) + 1) << "rank " << r;
    });
}

// A receive takes the next message of its pair of ranks, so they must be posted in that order.
TEST(PipelineMessages, ReceivesAreInTheSendersOrder) {
    for_many([](const Schedule& schedule, bool post_validation) {
        const MessagePlan plan(schedule, post_validation);
        std::map<std::pair<int, int>, std::vector<int>> sent, posted;
        for (int r = 0; r < schedule.ranks(); ++r)
            for (int i = 0; i < plan.actions(r); ++i) {
                for (const int m : plan.posts(r, i)) {
                    posted[{plan.messages()[size_t(m)].from, r}].push_back(m);
                    EXPECT_LE(i, plan.messages()[size_t(m)].for_);
                }
                const int out = plan.output(r, i);
                if (out >= 0 && !plan.messages()[size_t(out)].local())
                    sent[{r, plan.messages()[size_t(out)].to}].push_back(out);
            }
        EXPECT_EQ(sent, posted);
    });
}

// The forwards that run before the previous step is confirmed need only other such forwards.
TEST(PipelineMessages, ProvisionalForwardsNeedNoOthers) {
    for_many([](const Schedule& schedule, bool post_validation) {
        const MessagePlan plan(schedule, post_validation);
        for (int r = 0; r < schedule.ranks(); ++r) {
            EXPECT_EQ(plan.provisional(r) > 0, post_validation) << "rank " << r;
            for (int i = 0; i < plan.provisional(r); ++i) {
                EXPECT_EQ(schedule.actions[size_t(r)][size_t(i)].kind, ActionKind::forward);
                EXPECT_TRUE(plan.releases(r, i).empty());
                if (const int in = plan.input(r, i); in >= 0) {
                    EXPECT_TRUE(plan.provisional(plan.messages()[size_t(in)]));
                }
                for (const int m : plan.posts(r, i))
                    EXPECT_TRUE(plan.provisional(plan.messages()[size_t(m)]));
            }
        }
    });
}

TEST(PipelineMessages, EveryBorderIsCrossedTwiceAMicroBatch) {
    const int m = 6;
    for (const auto& [name, borders] :
         {std::pair{"1f1b", 3}, {"zb-h2", 3}, {"interleaved", 7}, {"zbv", 6}}) {
        const int micro_batches = std::string(name) == "interleaved" ? 8 : m;
        const MessagePlan plan(make_schedule(name, 4, micro_batches));
        const auto sent =
            std::ranges::count_if(plan.messages(), [](const Message& one) { return !one.local(); });
        EXPECT_EQ(sent, 2 * borders * micro_batches) << name;
    }
}

// ---- memory -------------------------------------------------------------------------------------

TEST(PipelineMemory, MicroBatchesInFlightAreTheSchedules) {
    LlamaConfig config = preset("nano");
    config.layers = 16;
    const StepShape shape = shape_of(config, 16);
    const auto most = [&](const char* name, int p, int m, int rank) {
        const Schedule schedule = make_schedule(name, p, m);
        const MemoryWalk walk = walk_memory(shape, schedule, MessagePlan(schedule),
                                            cut(shape, schedule.stages, "auto"), rank);
        EXPECT_EQ(walk.in_flight.back(), 0);
        return walk.most_in_flight;
    };
    for (int r = 0; r < 4; ++r) {
        EXPECT_EQ(most("afab", 4, 8, r), 8);
        EXPECT_EQ(most("1f1b", 4, 8, r), 4 - r);
        EXPECT_EQ(most("1f1b", 4, 2, r), std::min(4 - r, 2));
        EXPECT_EQ(most("zb-h1", 4, 8, r), 4);
        EXPECT_EQ(most("zb-h2", 4, 8, r), 7);
        EXPECT_EQ(most("zbv", 4, 8, r), 4);
    }
    EXPECT_EQ(most("interleaved", 4, 8, 0), 5.5);
}

// The tensors that linears keep for their weights: per token 4 h + 2 H D + 2 K D + 3 F elements a
// layer.
TEST(PipelineMemory, BetweenTheHalvesOfBackwardALayerKeepsWhatItsLinearsNeed) {
    const LlamaConfig c = preset("nano");
    const int64_t T = 32;
    LocalSizes sizes = local_sizes(shape_of(c, T));
    const double layer_bytes =
        4 * double(T) * double(4 * c.hidden + 2 * c.q_size() + 2 * c.kv_size() + 3 * c.ffn);
    sizes.embedding = sizes.head = false;
    EXPECT_EQ(kept_activations(sizes).after_backward_input, double(c.layers) * layer_bytes);
    sizes.model.recompute = Recompute::full;  // layers keep nothing else of what is computed again
    EXPECT_EQ(kept_activations(sizes).after_backward_input, double(c.layers) * layer_bytes);
    sizes.embedding = sizes.head = true;
    EXPECT_EQ(kept_activations(sizes).after_backward_input,
              double(c.layers) * layer_bytes + 4 * double(T) * double(2 * c.hidden + c.vocab));
}

}  // namespace
}  // namespace ultrascale
