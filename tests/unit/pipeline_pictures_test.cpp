// 05_pipeline: timelines in the terminal and in pictures show every action in its place. --simulate
// agrees with the formulas.
#include <cmath>
#include <filesystem>

#include "05_pipeline/lab/pictures.h"
#include "05_pipeline/lab/scale.h"
#include "tests/picture_checks.h"

namespace ultrascale {
using namespace ultrascale::pipeline;
namespace {

using namespace test;
using Lines = std::vector<std::string>;

TEST(PipelineDrawing, TwoLinesARank) {
    const Schedule schedule = make_schedule("1f1b", 2, 3);
    Simulation result = simulate(schedule, Costs::even(schedule, {1, 1, 1}));
    const Lines expected = {"rank 0    FFFF....DDDDFFDDDD..DDDD",  // two columns a unit
                            "          0011    0000221111  2222", "rank 1    ..FFDDDDFFDDDDFFDDDD",
                            "            000000111111222222"};
    EXPECT_EQ(draw_timeline(result, 0, 24), expected);
    for (auto& rank_actions : result.ranks)  // times that a clock would have measured
        for (TimedAction& timed : rank_actions) timed.begin += 1e4, timed.end += 1e4;
    EXPECT_EQ(draw_timeline(result, 0, 24), expected);
    EXPECT_EQ(draw_timeline(result, 24, 24)[2], "rank 1    .FDDFDDFDD");
}

TEST(PipelineDrawing, ChunksAndPairs) {
    const Schedule schedule =
        ScheduleReader("x", "stages: 0 1\n0: F0a F0b F1a+D0b F1b+D0a B1b W1b D1a").read();
    const Simulation result = simulate(schedule, Costs::even(schedule, {2, 2, 2}));
    EXPECT_EQ(draw_timeline(result, 0, 12),
              (Lines{"rank 0    FfFdFDfDbwDD", "          001010101111"}));
}

// Returns the rectangle of the action itself in a picture.
std::vector<Drawn> with_hint(const std::vector<Drawn>& all, const std::string& beginning) {
    std::vector<Drawn> found;
    for (const Drawn& drawn : all)
        if (drawn.name == "rect" && drawn.hint.starts_with(beginning)) found.push_back(drawn);
    return found;
}

TEST(PipelinePicture, ShowsBothTimelinesOnOneScale) {
    for (const std::string& name : schedule_names()) {
        const Schedule schedule = make_schedule(name, 4, 8);
        const Simulation simulated = simulate(schedule, Costs::even(schedule, {0.1, 0.1, 0.1}));
        Simulation ran = simulate(schedule, Costs::even(schedule, {0.2, 0.2, 0.2}));
        for (auto& rank_actions : ran.ranks)
            for (TimedAction& timed : rank_actions) timed.begin += 1e4, timed.end += 1e4;
        const SchedulePicture picture(schedule, simulated, ran);
        const std::vector<Drawn> all = read_picture(picture.draw().document());
        expect_readable(all);
        size_t actions = 0;
        for (const auto& rank_actions : schedule.actions) actions += rank_actions.size();
        EXPECT_EQ(with_hint(all, "as simulated ").size(), actions) << name;
        EXPECT_EQ(with_hint(all, "as it ran ").size(), actions) << name;
        // It ran twice as slowly, so it is drawn twice as wide.
        const std::string first = " " + to_string(schedule, 0, schedule.actions[0].front()) + ": ";
        const std::vector<Drawn> fast = with_hint(all, "as simulated" + first),
                                 slow = with_hint(all, "as it ran" + first);
        ASSERT_FALSE(fast.empty() || slow.empty()) << name;
        EXPECT_NEAR(slow[0].number("width"), 2 * fast[0].number("width"), 0.02) << name;
        EXPECT_EQ(slow[0].number("x"), fast[0].number("x"));
        EXPECT_LT(fast[0].number("y"), slow[0].number("y"));
    }
}

TEST(PipelineScale, EveryFigureIsAsItsFormula) {
    int exact = 0;
    for (const char* text : {"p=4,m=8,v=2", "p=8,m=32,v=4,N=16", "p=3,m=9,v=3,F=1,B=1.3,W=0.7",
                             "p=2,m=4,v=2,F=2,B=1.5,W=1.25", "p=16,m=64,v=4"})
        for (const ScaleRow& row : simulate_all(Scale::parse(text))) {
            if (!row.refused.empty()) continue;
            EXPECT_TRUE(row.as_formula()) << text << " " << row.name;
            exact += row.formula.step_bubble.has_value();
        }
    EXPECT_GE(exact, 37);
    ScaleRow wrong = simulate_row("1f1b", Scale::parse("p=4,m=8,v=2"));
    wrong.step_bubble += 0.01;
    EXPECT_FALSE(wrong.as_formula());
}

TEST(PipelineScale, MessagesOfAMicroBatch) {
    const Scale scale = Scale::parse("p=4,m=8,v=2");
    const auto messages = [&](const char* name) { return simulate_row(name, scale).messages; };
    EXPECT_EQ(messages("1f1b"), 2);  // an output downwards, a gradient upwards
    EXPECT_EQ(messages("interleaved"), 4);
    EXPECT_EQ(messages("zbv"), 4);
    EXPECT_EQ(messages("dualpipe"), 2);  // one for a micro-batch of either copy
    EXPECT_EQ(simulate_row("1f1b", Scale::parse("p=2,m=8,v=2")).messages, 1);
    EXPECT_EQ(simulate_row("zbv", Scale::parse("p=1,m=8,v=2")).messages, 0);
}

TEST(PipelineScale, ScoresAScheduleOfOnesOwn) {
    const std::string path = testing::TempDir() + "pipeline_own.txt";
    write_file(path,
               "0: F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3\n1: F0 B0 F1 B1 W0 F2 B2 W1 F3 B3 W2 W3");
    Scale scale = Scale::parse("p=2,m=4,v=2");
    scale.own = "file:" + path;
    const std::vector<ScaleRow> rows = simulate_all(scale);
    EXPECT_EQ(rows.size(), schedule_names().size() + 1);
    EXPECT_EQ(rows.back().seconds, 13);  // the time of ZB-H1 in the memory of 1F1B
    EXPECT_EQ(rows.back().peak, 2);
    std::filesystem::remove(path);
    EXPECT_THROW(simulate_all(scale), UserError);
}

TEST(PipelineScale, RefusesWhatItCannotRead) {
    const auto refused = [](const std::string& text) -> std::string {
        try {
            Scale::parse(text);
        } catch (const UserError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(refused("p=8,m=16,v=2,N=8,F=1,B=1.5,W=0.5,hop=0.1"), "");
    EXPECT_EQ(refused("p=4,q=8"),
              "--simulate p=4,q=8: \"q=8\" is not p, m, v, N, F, B, W or hop with a number; write "
              "p=64,m=512,v=4");
    for (const char* text : {"", "p", "p=", "p=4,", ",", "p=4x", "p=0", "p=4.5", "v=1", "v=27",
                             "F=0", "B=-1", "hop=nan", "F=inf", "p=1000,m=60000"})
        EXPECT_NE(refused(text), "") << text;
}

}  // namespace
}  // namespace ultrascale
