// Runs that are asked to stop: alone, and one rank of several.
#include "stopped.h"

namespace ultrascale::test {
namespace {

namespace fs = std::filesystem;

TEST(Stopped, Alone) { Stopped(0, "00_single_gpu", "").goes_on_after(SIGTERM); }

// The one rank's vote reaches all others: over the loss's sum, the norm's, or both.
TEST(Stopped, OneOfSeveralRanks) {
    go_on_after_one_rank_is_signalled(
        {{2, "01_data_parallel", ""}, {4, "03_tensor_parallel", "--tp 2"}});
}

// A rank that neither computes nor answers, as behind a cable that is cut.
TEST(Hang, SaysWhoWaitsForWhom) {
    const SmallModel model;
    const TempDir dir;
    const ProcessMark mark;
    std::atomic<bool> over = false;
    std::thread stops([&] {
        while (!over && !fs::exists(dir / "saved/latest_checkpoint"))
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const std::vector<pid_t> ranks = mark.running(program("02_zero"));
        if (!ranks.empty()) kill(ranks[0], SIGSTOP);
    });
    const Outcome run = run_ranks(
        2, "02_zero",
        fmt::format("--model {} --seq 8 --no-verify --steps 100000 --stage 3 --hang-seconds 2 "
                    "--save {} --save-every 1",
                    model.path(), dir / "saved"));
    over = true;
    stops.join();
    EXPECT_EQ(run.exit_code, 4) << run.err;
    const bool zero_waits = contains(run.err, "rank 0: has waited 2 s for rank 1 in "),
               one_waits = contains(run.err, "rank 1: has waited 2 s for rank 0 in ");
    EXPECT_TRUE(zero_waits != one_waits) << run.err;
    EXPECT_TRUE(contains(run.err, " of group ") && contains(run.err, "--hang-seconds")) << run.err;
}

TEST(Stopped, SavesNothingWithoutSave) {
    const SmallModel model;
    const ProcessMark mark;
    std::atomic<bool> over = false;
    std::thread scheduler([&] {  // as soon as the run listens, which is before its first step
        for (; !over; std::this_thread::sleep_for(std::chrono::milliseconds(1)))
            for (const pid_t pid : mark.running(program("00_single_gpu"))) {
                const std::string status = slurp(fmt::format("/proc/{}/status", pid));
                const size_t caught = status.find("SigCgt:");
                if (caught == status.npos) continue;
                const uint64_t mask = std::stoull(status.substr(caught + 7), nullptr, 16);
                if (mask >> (SIGTERM - 1) & 1) kill(pid, SIGTERM);
            }
    });
    const Outcome run =
        train("00_single_gpu",
              fmt::format("--model {} --seq 8 --no-verify --steps 100000000", model.path()), 85);
    over = true;
    scheduler.join();
    EXPECT_TRUE(contains(run.err, "stopped: SIGTERM after step ")) << run.err;
    EXPECT_TRUE(contains(run.err, "nothing is saved without --save")) << run.err;
}

}  // namespace
}  // namespace ultrascale::test
