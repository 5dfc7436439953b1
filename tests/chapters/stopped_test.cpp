// Runs that are asked to stop: alone, and one rank of several.
#include "stopped.h"

namespace ultrascale::test {
namespace {

TEST(Stopped, Alone) { Stopped(0, "00_single_gpu", "").goes_on_after(SIGTERM); }

// The one rank's vote reaches all others: over the loss's sum, the norm's, or both.
TEST(Stopped, OneOfSeveralRanks) {
    go_on_after_one_rank_is_signalled(
        {{2, "01_data_parallel", ""}, {4, "03_tensor_parallel", "--tp 2"}});
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
