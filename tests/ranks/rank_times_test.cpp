#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/trace.h"
#include "lab/report/report.h"
#include "tests/test_files.h"

namespace ultrascale {
namespace {

// A rank that takes longer for a phase is above the median of the ranks that do the same, in that
// phase and no other, and the memory that it holds is that at the end of each step.
TEST(RankTimes, ASlowRankIsAboveTheMedianOfItsGroup) {
    const int n = Communicator::world().size(), me = Communicator::world().rank();
    const test::TempDir folder;
    Options options;
    options.json = folder / "run.json", options.profile = true;
    testing::internal::CaptureStdout();
    trace_clear();
    Report report("test", options, StepShape{}, 5);
    report.group_of_times(me == 0 ? 0 : 1);
    std::vector<Tensor> leak;
    const auto sleep = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
    for (int64_t step = 1; step <= 5; ++step) {
        {
            const SectionSpan span("step", step);
            phase("slow", [&] { sleep(me == n - 1 ? 40 : 1); });
            phase("equal", [&] { sleep(1); });
            if (me == n - 1) leak.push_back(Tensor::empty({256}, DType::fp32, Memory::workspace));
        }
        report.step({.step = step, .loss = 1, .grad_norm = 1, .lr = 1, .seconds = 1, .tokens = 1});
    }
    report.finish();
    trace_record(false);
    trace_clear();
    const std::string printed = testing::internal::GetCapturedStdout();
    if (me != 0) return;
    std::vector<nlohmann::json> lines;
    std::ifstream in(options.json);
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    const nlohmann::json times = lines.back()["summary"]["times_by_rank"];
    ASSERT_EQ(times.size(), size_t(n));
    const nlohmann::json last = times.back();
    EXPECT_GE(last["slow"]["ms"], 40);
    EXPECT_GE(last["idle"]["ms"], 41);  // no operation ran
    if (n > 3) {                        // the group has at least three ranks
        EXPECT_LT(last["slow"]["group_ms"], 30);
        EXPECT_NE(printed.find(fmt::format("rank {}\n", n - 1)), std::string::npos) << printed;
    }
    EXPECT_EQ(times[0]["slow"]["ms"], times[0]["slow"]["group_ms"]);  // alone in its group
    std::erase_if(lines, [](const auto& line) { return !line.contains("by_rank"); });
    ASSERT_EQ(lines.size(), size_t(5 * n));
    const auto held = [&](size_t i) { return int64_t(lines[i]["by_rank"]["held_bytes"]); };
    EXPECT_EQ(lines.back()["by_rank"]["step"], 5);
    EXPECT_EQ(held(lines.size() - 1) - held(lines.size() - 5), 4 * 1024);
}

}  // namespace
}  // namespace ultrascale
