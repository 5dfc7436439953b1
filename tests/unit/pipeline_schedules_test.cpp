// 05_pipeline: the generators' schedules, compared with the papers' lists and rules; and what they
// refuse.
#include <gtest/gtest.h>

#include <regex>

#include "05_pipeline/2_schedules/schedules.h"

namespace ultrascale {
using namespace ultrascale::pipeline;
namespace {

// Writes a rank's actions in one line, without the blanks between them.
std::string list(std::string_view name, int p, int m, int rank, ScheduleOptions options = {}) {
    std::string line = to_string(make_schedule(name, p, m, options), rank);
    std::erase(line, ' ');
    return line;
}
bool begins(const std::string& line, const std::string& with) { return line.starts_with(with); }

TEST(PipelineSchedules, AreThoseOfThePapers) {
    EXPECT_EQ(list("naive", 4, 3, 2), "F0D0F1D1F2D2");
    EXPECT_EQ(list("afab", 4, 3, 2), "F0F1F2D0D1D2");
    EXPECT_EQ(list("1f1b", 4, 8, 0), "F0F1F2F3D0F4D1F5D2F6D3F7D4D5D6D7");
    EXPECT_EQ(list("1f1b-overlap", 3, 5, 2), "F0F1+D0F2+D1F3+D2F4+D3D4");
    EXPECT_EQ(list("zb-h1", 4, 8, 2), "F0F1B0F2B1F3B2W0F4B3W1F5B4W2F6B5W3F7B6W4B7W5W6W7");
    EXPECT_EQ(list("zb-h2", 4, 8, 3), "F0B0F1B1F2B2F3B3F4B4F5B5F6B6W0F7B7W1W2W3W4W5W6W7");
    EXPECT_TRUE(begins(list("zbv", 4, 8, 3), "F0aF0bF1aF1bF2aF2bF3aF3bB0bW0bF4aB0aW0aF4bB1bW1b"));
    EXPECT_EQ(list("breadth-first", 2, 2, 1), "F0aF1aF0bF1bD0bD1bD0aD1a");
    // Narayanan et al. 2021, figure 4, device 1 of 4; its eight micro-batches are 1 to 8.
    EXPECT_TRUE(begins(list("interleaved", 4, 8, 0),
                       "F0aF1aF2aF3aF0bF1bF2bF3bF4aF5aF6aD0bF7aD1bF4bD2bF5bD3bF6bD0aF7bD1a"));
    // Of the size of DeepSeek-V3's figure 5: 8 ranks, micro-batches 0 to 9 and 10 to 19.
    const std::string dual_pipe = list("dualpipe", 8, 20, 0);
    EXPECT_TRUE(begins(dual_pipe,
                       "F0aF1aF2aF3aF4aF5aF6aF10bB10bW10bF11bB11bW11bF12bB12bW12bF13b"
                       "F7a+D13bF14b+D0aF8a+D14bF15b+D1aF9a+D15bF16b+D2aD16bF17b+D3a"))
        << dual_pipe;
    EXPECT_TRUE(dual_pipe.ends_with("B7aW7aB8aW8aB9aW9a")) << dual_pipe;
}

TEST(PipelineSchedules, AWThatNoBPrecedesIsRefused) {
    RankActions actions({0});
    actions.forward();
    EXPECT_THROW(actions.backward_weight(), UserError);
    actions.backward_input();
    actions.backward_weight();
    EXPECT_EQ(actions.take().size(), 3u);
}

// Counts the forwards before a rank's first backward.
int forwards_first(const Schedule& schedule, int rank) {
    int count = 0;
    for (const Action& action : schedule.actions[size_t(rank)]) {
        if (action.kind != ActionKind::forward) break;
        ++count;
    }
    return count;
}

TEST(PipelineSchedules, WarmUpAsTheRulesSay) {
    for (const int p : {2, 3, 4, 8})
        for (const int m : {2 * p, 2 * p + 1, 4 * p})
            for (int r = 0; r < p; ++r) {
                const auto first = [&](std::string_view name, ScheduleOptions options = {}) {
                    return forwards_first(make_schedule(name, p, m, options), r);
                };
                EXPECT_EQ(first("1f1b"), p - r);
                EXPECT_EQ(first("1f1b-overlap"), 2 * (p - r));
                EXPECT_EQ(first("zb-h1"), p - r);
                EXPECT_EQ(first("zb-h2"), 2 * (p - 1 - r) + 1);
                EXPECT_EQ(first("zbv"), 2 * (p - r) - 1 + 2 * r + 1);
                // The last rank's next forward does not run together with a backward.
                EXPECT_EQ(first("dualpipev"), 2 * (p - r - 1) + 2 * (r + 1) + (r == p - 1));
                for (const int v : {2, 3})
                    for (const int n : {p, 2 * p, m})
                        if (m % n == 0) {
                            EXPECT_EQ(first("interleaved", {v, n}),
                                      std::min(2 * (p - r - 1) + (v - 1) * n + 1, v * m));
                        }
            }
}

TEST(PipelineSchedules, HoldAsManyActivationsAsTheFormulasSay) {
    for (const int p : {2, 3, 4, 8})
        for (const int m : {1, p - 1, p, 2 * p - 1, 2 * p, 4 * p + 2})
            for (int r = 0; r < p; ++r) {
                const auto peak = [&](std::string_view name, ScheduleOptions options = {}) {
                    return peak_in_flight(make_schedule(name, p, m, options), r);
                };
                EXPECT_EQ(peak("naive"), 1);
                EXPECT_EQ(peak("afab"), m);
                EXPECT_EQ(peak("1f1b"), std::min(p - r, m));
                EXPECT_EQ(peak("1f1b-overlap"), std::min(2 * (p - r), m));
                EXPECT_EQ(peak("breadth-first"), m);
                EXPECT_EQ(peak("zb-h1"), std::min(p, m));
                EXPECT_EQ(peak("zb-h2"), std::min(2 * p - 1, m));
                EXPECT_LE(peak("zbv"), p);
                EXPECT_LE(peak("v-half"), (p + 2) / 2);
                for (const int v : {2, 3})
                    for (const int n : {p, 2 * p, m})
                        if (n >= p && n <= m && m % n == 0) {
                            EXPECT_EQ(
                                peak("interleaved", {v, n}),
                                std::min(double(m), double(2 * (p - 1 - r) + (v - 1) * n + 1) / v));
                        }
                if (m >= 2 * p) {
                    EXPECT_EQ(peak("zbv"), p);
                    EXPECT_EQ(peak("dualpipev"), p + 0.5);
                }
                if (p % 2 == 0 && m % 2 == 0 && m >= 2 * p) {
                    EXPECT_EQ(peak("dualpipe"), p + 1);
                }
            }
}

TEST(PipelineSchedules, RunForEverySizeTheyDoNotRefuse) {
    int checked = 0;
    for (const std::string& name : schedule_names())
        for (int p = 1; p <= 9; ++p)
            for (int m = 1; m <= 24; ++m)
                for (const ScheduleOptions options : {ScheduleOptions{}, {3, 0}, {0, 12}}) {
                    const ScheduleKind& kind = schedule_kind(name);
                    if ((options.chunks && !kind.takes_chunks) ||
                        (options.group && !kind.takes_group))
                        continue;
                    Schedule schedule;
                    try {
                        schedule = make_schedule(name, p, m, options);
                    } catch (const UserError&) {  // AreRefusedWithAReason tests it
                        EXPECT_TRUE(name == "interleaved" || name.starts_with("dualpipe")) << name;
                        continue;
                    }
                    EXPECT_NO_THROW(check_schedule(schedule)) << name << " " << p << " " << m;
                    EXPECT_EQ(schedule.micro_batches, m);
                    EXPECT_EQ(schedule.ranks(), p);
                    ++checked;
                }
    EXPECT_GT(checked, 1700);
}

TEST(PipelineSchedules, DualPipeIsTheSameFromBothEnds) {
    const int p = 6, m = 20;
    const Schedule schedule = make_schedule("dualpipe", p, m);
    EXPECT_EQ(schedule.copies(), 2);
    for (int r = 0; r < p; ++r) {
        std::vector<Action> mirrored = schedule.actions[size_t(p - 1 - r)];
        for (Action& action : mirrored) {
            action.chunk = 1 - action.chunk;
            action.micro_batch = (action.micro_batch + m / 2) % m;
        }
        EXPECT_EQ(schedule.actions[size_t(r)], mirrored);
        EXPECT_EQ(schedule.locations()[1][size_t(r)], (StageLocation{p - 1 - r, 1}));
    }
}

std::string refused(std::string_view name, int p, int m, ScheduleOptions options = {}) {
    try {
        make_schedule(name, p, m, options);
    } catch (const UserError& error) {
        return error.what();
    }
    return "";
}

TEST(PipelineSchedules, AreRefusedWithAReason) {
    EXPECT_EQ(refused("interleaved", 8, 17),
              "--schedule interleaved: 17 micro-batches are not whole groups of 8; use 16 or 24 of "
              "them, or another --group");
    EXPECT_EQ(refused("interleaved", 8, 24, {2, 12}), "");
    EXPECT_NE(refused("interleaved", 8, 4).find("use 8, or 1f1b"), std::string::npos);
    EXPECT_NE(refused("interleaved", 4, 8, {2, 2}).find("--group 2 must be at least 4"),
              std::string::npos);
    EXPECT_NE(refused("interleaved", 4, 8, {27, 0}).find("--chunks 27"), std::string::npos);
    EXPECT_NE(refused("breadth-first", 4, 8, {1, 0}).find("--chunks 1"), std::string::npos);
    EXPECT_NE(refused("dualpipe", 3, 8).find("even number"), std::string::npos);
    EXPECT_NE(refused("dualpipe", 4, 9).find("use 10"), std::string::npos);
    EXPECT_NE(refused("dualpipe", 4, 6).find("at least 8"), std::string::npos);
    EXPECT_NE(refused("dualpipev", 4, 7).find("at least 8"), std::string::npos);
    EXPECT_NE(refused("zbv", 4, 8, {2, 0}).find("--chunks has no effect"), std::string::npos);
    EXPECT_NE(refused("1f1b", 4, 8, {0, 4}).find("--group has no effect"), std::string::npos);
    EXPECT_NE(refused("file:", 4, 8).find("it names no file"), std::string::npos);
    EXPECT_NE(refused("1f1b", 4, 100'001).find("at most 100000"), std::string::npos);
    EXPECT_NE(refused("2f2b", 4, 8).find("there are naive, afab, 1f1b"), std::string::npos);
}

// The schedule exists for the number that an error recommends.
TEST(PipelineSchedules, WhatIsRecommendedWorks) {
    const std::regex number(
        "use (?:at least )?([0-9]+)(?: or ([0-9]+))?|must be at (?:least|most) "
        "([0-9]+)");
    int recommended = 0;
    for (const std::string& name : schedule_names())
        for (int p = 1; p <= 5; ++p)
            for (int m = 1; m <= 12; ++m)
                for (int group = 0; group <= (schedule_kind(name).takes_group ? 7 : 0); ++group) {
                    const std::string error = refused(name, p, m, {.group = group});
                    std::smatch found;
                    if (!std::regex_search(error, found, number)) continue;
                    for (size_t i = 1; i < found.size(); ++i) {
                        if (!found[i].matched) continue;
                        const int n = std::stoi(found[i]);
                        EXPECT_EQ(i < 3 ? refused(name, p, n, {.group = group})
                                        : refused(name, p, n, {.group = n}),
                                  "")
                            << p << " " << error;
                        ++recommended;
                    }
                }
    EXPECT_GT(recommended, 100);
}

}  // namespace
}  // namespace ultrascale
