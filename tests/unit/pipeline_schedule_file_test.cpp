// 05_pipeline: schedules in text files.
#include <gtest/gtest.h>

#include <filesystem>

#include "05_pipeline/2_schedules/schedules.h"

namespace ultrascale {
using namespace ultrascale::pipeline;
namespace {

Schedule read(const std::string& text) { return ScheduleReader("my.txt", text).read(); }
std::string fault(const std::string& text) {
    try {
        read(text);
    } catch (const UserError& error) {
        return error.what();
    }
    return "";
}

TEST(PipelineScheduleFile, OneLineARank) {
    const Schedule schedule = read(
        "# mine\r\n\n"
        "1: F0 D0\tF1 D1  # the last rank\r\n"
        "0: F0 F1 D0 D1");
    const Schedule same = make_schedule("1f1b", 2, 2);
    EXPECT_EQ(schedule.actions, same.actions);
    EXPECT_EQ(schedule.chunks, same.chunks);
    EXPECT_EQ(schedule.stages, 2);
    EXPECT_EQ(schedule.micro_batches, 2);
}

TEST(PipelineScheduleFile, HoldsEverySchedule) {
    for (const std::string& name : schedule_names()) {
        const Schedule schedule = make_schedule(name, 4, 8), back = read(schedule_text(schedule));
        EXPECT_EQ(back.actions, schedule.actions) << name;
        EXPECT_EQ(back.chunks, schedule.chunks) << name;
        EXPECT_EQ(back.stages, schedule.stages) << name;
        EXPECT_EQ(back.micro_batches, schedule.micro_batches) << name;
    }
}

TEST(PipelineScheduleFile, SaysWhichLineIsWrong) {
    EXPECT_EQ(fault("0: F0 D0\n\n1: F0 X0"),
              "my.txt:3: \"X0\" is no action; one is F, D, B or W, a micro-batch, and the chunk's "
              "letter if the rank has several, like F0 or B3b");
    for (const char* word : {"F", "F-1", "F0A", "F0ab", "f0", "F0+", "+F0", "F99999999999"})
        EXPECT_TRUE(fault(std::string("0: ") + word).starts_with("my.txt:1: \"")) << word;
    EXPECT_EQ(fault("F0 D0"),
              "my.txt:1: no colon; a line is a rank and its actions, like \"0: F0 D0\"");
    EXPECT_EQ(fault("rank 0: F0"),
              "my.txt:1: \"rank 0\" before the colon is neither a rank nor \"stages\"");
    EXPECT_EQ(fault("0: F0\n0: D0"), "my.txt:2: rank 0 has a list already, in line 1");
    EXPECT_EQ(fault("0: F0 D0\n2: F0 D0"),
              "my.txt: there is a list for rank 2 and none for rank 1");
    EXPECT_EQ(fault("# nothing\n"),
              "my.txt: it has no rank's list; a line like \"0: F0 D0\" is one");
    EXPECT_EQ(fault("\n0: F0b D0b"), "my.txt:2: F0b: rank 0 has 1 chunk, a");
    EXPECT_EQ(fault("stages: 0 1\n0: F0 D0"),
              "my.txt:2: F0 names none of the rank's 2 chunks; write F0a, or another letter");
    EXPECT_EQ(fault("stages: 0 | 1\n0: F0 D0"), "my.txt:1: stages of 2 ranks, but lists of 1");
    EXPECT_EQ(fault("stages: 0 x"),
              "my.txt:1: \"x\" is no stage; stages are numbers, with | between ranks");
    EXPECT_EQ(fault("stages: 0\nstages: 0"), "my.txt:2: the stages are told already, in line 1");
}

TEST(PipelineScheduleFile, MustFitTheRun) {
    const std::string path = testing::TempDir() + "pipeline_schedule.txt";
    write_file(path, schedule_text(make_schedule("zbv", 2, 4)));
    EXPECT_EQ(make_schedule("file:" + path, 2, 4).actions, make_schedule("zbv", 2, 4).actions);
    const auto refused = [&](const std::string& name, int p, int m) -> std::string {
        try {
            make_schedule(name, p, m);
        } catch (const UserError& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(refused("file:" + path, 3, 4),
              "--schedule file:" + path + ": it is for 2 ranks, not for 3");
    EXPECT_EQ(refused("file:" + path, 2, 5),
              "--schedule file:" + path +
                  ": it has 4 micro-batches, but a step has 5; use --grad-accum 4");
    write_file(path, "0: F0 D0 F1 D1\n1: F0 F1 D0 D1\n");
    EXPECT_NE(refused("file:" + path, 2, 2).find("it hangs"), std::string::npos);
    std::filesystem::remove(path);
    EXPECT_NE(refused("file:" + path, 2, 2), "");
}

}  // namespace
}  // namespace ultrascale
