// A run that is asked to stop, as by a scheduler that needs the machines: it finishes its step,
// saves, and ends with exit code 85. The same command line goes on, and all losses are those of a
// run that was left alone.
#pragma once

#include <atomic>
#include <csignal>
#include <thread>

#include "compare_runs.h"
#include "processes.h"

namespace ultrascale::test {

inline constexpr int all_steps = 100;

class Stopped {
public:
    Stopped(int ranks, const std::string& chapter, const std::string& arguments)
        : ranks_(ranks),
          chapter_(chapter),
          arguments_(fmt::format("--model {} --seq 8 --micro-batch 2 --lr 1e-2 --shuffle "
                                 "--no-verify --until-step {} {}",
                                 model_.path(), all_steps, arguments)) {}

    // Signals one rank after the first save: in all runs another one.
    void goes_on_after(int signal) {
        const Outcome straight = train(ranks_, chapter_, arguments_);
        std::vector<double> losses, norms;
        for (int run = 0; run < 3; ++run) {
            SCOPED_TRACE(fmt::format("run {}", run));
            const bool last = run == 2;
            const Outcome part = last ? resume(0) : signalled(signal, run);
            for (const double loss : part.of("loss")) losses.push_back(loss);
            for (const double norm : part.of("grad_norm")) norms.push_back(norm);
            if (last) break;
            EXPECT_TRUE(contains(part.err, "signal after step") || contains(part.err, "SIG"))
                << part.err;
            EXPECT_TRUE(contains(part.err, "--resume goes on from " + saved_)) << part.err;
            EXPECT_EQ(part.summary.at("stopped").at("step").get<int64_t>(), int64_t(losses.size()));
            EXPECT_FALSE(std::filesystem::exists(saved_ + "/latest_checkpoint"));
        }
        EXPECT_LE(largest_difference(losses, straight.of("loss")), on_gpu ? 1e-3 : 0);
        EXPECT_LE(largest_difference(norms, straight.of("grad_norm")), on_gpu ? 1e-2 : 0);
        EXPECT_EQ(resume(0).steps.size(), 0u);  // there is nothing left to do
    }

private:
    Outcome resume(int exit_code) {
        return train(ranks_, chapter_,
                     fmt::format("{} --resume --save {} --save-every 2", arguments_, saved_),
                     exit_code);
    }
    Outcome signalled(int signal, int run) {
        const ProcessMark mark;
        std::atomic<bool> over = false;
        std::thread scheduler([&] {
            while (!over && !std::filesystem::exists(saved_ + "/latest_checkpoint"))
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            const std::vector<pid_t> ranks = mark.running(program(chapter_));
            if (!ranks.empty()) kill(ranks[size_t(run + 1) % ranks.size()], signal);
        });
        const Outcome outcome = resume(85);
        over = true;
        scheduler.join();
        return outcome;
    }

    const SmallModel model_;
    const TempDir dir_;
    const std::string saved_ = dir_ / "saved";
    const int ranks_;
    const std::string chapter_, arguments_;
};

struct Case {
    int ranks;
    const char *chapter, *arguments;
};
inline void go_on_after_one_rank_is_signalled(const std::vector<Case>& cases) {
    for (const Case& c : cases) {
        SCOPED_TRACE(fmt::format("{} ranks: {} {}", c.ranks, c.chapter, c.arguments));
        Stopped(c.ranks, c.chapter, c.arguments).goes_on_after(SIGUSR1);
    }
}

}  // namespace ultrascale::test
