// Breaks 05_pipeline on purpose, one thing at a time, and expects the schedule's checker, --verify,
// the memory check or the communication check to find it, on any number of ranks (part of
// comm_test).
#include "pipeline_break.h"

namespace ultrascale::pipeline_break {
using namespace ultrascale::pipeline;
namespace {

std::vector<std::string> schedules() {
    std::vector<std::string> names;
    for (const std::string& name : schedule_names())
        if (name != "dualpipe" || ranks() % 2 == 0) names.push_back(name);
    return names;
}

TEST(PipelineBreak, UnchangedSchedulesPass) {
    NEEDS_RANKS();
    for (const std::string& name : schedules()) {
        SCOPED_TRACE(name);
        expect(train(schedule_of(name), name == "zb-h1" || name == "zbv"), true, true, true);
    }
}

// The plain loop runs as it is, with something forgotten or confused, and with another prediction.
TEST(PipelineBreak, ThePlainLoop) {
    NEEDS_RANKS();
    const Schedule order = schedule_of("plain");
    for (const bool tied : {false, true})
        expect(train(order, tied, {.plain = true}), true, true, true);
    const Breaks untied{.describe =
                            [](ParameterList& parameters, int) {
                                for (const auto& p : parameters) p->replica_groups.clear();
                            },
                        .plain = true};
    expect(train(order, true, untied), false, true, true);
    const Breaks shifted{.batch =
                             [](const HostBatch& whole, int rank) {
                                 HostBatch batch = whole;
                                 if (rank == ranks() - 1)
                                     std::ranges::rotate(batch.targets, batch.targets.begin() + 1);
                                 return batch;
                             },
                         .plain = true};
    expect(train(order, false, shifted), false, true, true);
    expect(train(order, false, {.plain = true, .predicted = "afab"}), true, false, true);
}

// With few micro-batches, or one, a loop whose ranks wait for each other in a cycle would hang.
TEST(PipelineBreak, ThePlainLoopWithFewMicroBatches) {
    NEEDS_RANKS();
    for (const int m : {1, ranks() - 1, ranks(), ranks() + 1})
        expect(train(plain_schedule(ranks(), m), false, {.plain = true}), true, true, true);
}

// ---- schedules that the checker refuses ---------------------------------------------------------

// Returns the checker's message about a changed schedule, or "" if the schedule passes.
std::string refusal(const std::string& name,
                    const std::function<void(std::vector<Action>&)>& break_it, int rank = 0) {
    Schedule schedule = schedule_of(name);
    break_it(schedule.actions[size_t(rank)]);
    try {
        check_schedule(schedule);
        return "";
    } catch (const UserError& error) {
        return error.what();
    }
}
void expect_refused(const std::string& refusal, const std::string& part) {
    EXPECT_NE(refusal.find(part), std::string::npos) << "without \"" << part << "\": " << refusal;
}

TEST(PipelineBreak, TheCheckerRefusesBrokenSchedules) {
    NEEDS_RANKS();
    for (const std::string& name : schedules()) EXPECT_EQ(refusal(name, [](auto&) {}), "") << name;
    const int last = ranks() - 1;
    // A backward comes before its own forward.
    expect_refused(refusal(
                       "1f1b", [](auto& actions) { std::swap(actions[0], actions[1]); }, last),
                   "D0 needs F0");
    // A backward comes before forwards that the last rank needs first, so both ranks wait.
    expect_refused(refusal("afab",
                           [](auto& actions) {
                               const auto D0 =
                                   std::ranges::find(actions, ActionKind::backward, &Action::kind);
                               std::rotate(actions.begin() + 1, D0, D0 + 1);
                           }),
                   "it hangs: rank");
    // A receive is lost, so the rank that would have sent it, or received its result, has no
    // partner.
    expect_refused(refusal(
                       "1f1b", [](auto& actions) { actions.erase(actions.begin()); }, last),
                   "D0 needs F0");
    expect_refused(refusal("zb-h1",
                           [](auto& actions) {
                               actions.erase(std::ranges::find(actions, ActionKind::backward_input,
                                                               &Action::kind));
                           }),
                   "needs B");
    // There is one weight gradient too many, or too few.
    expect_refused(refusal("zb-h1", [](auto& actions) { actions.push_back(actions.back()); }),
                   "is done already");
    expect_refused(refusal("zb-h1", [](auto& actions) { actions.pop_back(); }), "is missing");
}

// ---- trainings that are wrong -------------------------------------------------------------------

TEST(PipelineBreak, TheTiedSumIsForgotten) {
    NEEDS_RANKS();
    const Breaks forgotten{.describe = [](ParameterList& parameters, int) {
        for (const auto& p : parameters) std::erase(p->replica_groups, "tied");
    }};
    for (const char* name : {"1f1b", "zb-h2"})
        expect(train(schedule_of(name), true, forgotten), false, true, true);
    // Rank 0 has both uses of the weight, so nothing is missing.
    expect(train(schedule_of("zbv"), true, forgotten), true, true, true);
}

TEST(PipelineBreak, TheTiedWeightCountsTwiceInTheNorm) {
    NEEDS_RANKS();
    expect(train(schedule_of("1f1b"), true, {.tied_counts_twice = true}), false, true, true);
}

TEST(PipelineBreak, TheSecondCopyOfTheModelIsForgotten) {
    NEEDS_RANKS();
    if (ranks() % 2 != 0) GTEST_SKIP() << "two directions need an even number of ranks";
    const Breaks forgotten{.describe = [](ParameterList& parameters, int) {
        for (const auto& p : parameters) p->replica_groups.clear();
    }};
    EXPECT_FALSE(train(schedule_of("dualpipe"), false, forgotten).verified);
}

// The stage with the loss reads the targets of another micro-batch than the one it receives.
TEST(PipelineBreak, StagesTakeDifferentSamples) {
    NEEDS_RANKS();
    const Breaks shifted{.batch = [](const HostBatch& whole, int rank) {
        HostBatch batch = whole;
        if (rank == ranks() - 1) std::ranges::rotate(batch.targets, batch.targets.begin() + 1);
        return batch;
    }};
    expect(train(schedule_of("1f1b"), false, shifted), false, true, true);
}

TEST(PipelineBreak, AWeightsGradientIsAddedTwice) {
    NEEDS_RANKS();
    const Breaks twice{.after_actions = [](ParameterList& parameters, int rank) {
        if (rank != 1) return;
        for (const auto& p : parameters)
            if (p->name.ends_with("down_proj.weight")) {
                ops::scale(p->grad, 1.5);
                return;
            }
    }};
    for (const char* name : {"1f1b", "zb-h1", "zbv"})
        expect(train(schedule_of(name), false, twice), false, true, true);
}

// A schedule that the checker would have refused causes an error, not wrong numbers.
TEST(PipelineBreak, TheExecutorRefusesWhatTheCheckerWouldHave) {
    if (ranks() > 1) GTEST_SKIP() << "other ranks would wait for the one that stops";
    Schedule schedule = schedule_of("zb-h1");
    schedule.actions[0].push_back(schedule.actions[0].back());  // one W too many
    EXPECT_THROW(train(schedule), std::logic_error);
    schedule = schedule_of("zb-h1");
    schedule.actions[0].pop_back();  // one W too few
    EXPECT_THROW(train(schedule), std::logic_error);
}

TEST(PipelineBreak, HoldsOtherThanPredicted) {
    NEEDS_RANKS();
    expect(train(schedule_of("afab"), false, {.predicted = "1f1b"}), true, false, true);
    expect(train(schedule_of("zb-h1"), false, {.predicted = "1f1b"}), true, false, true);
    expect(train(schedule_of("1f1b"), false, {.predicted = "naive"}), true, false, true);
}

}  // namespace
}  // namespace ultrascale::pipeline_break
