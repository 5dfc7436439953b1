// Checkpoints of 02_zero: any other stage, number of ranks, or chapter can resume them.
#include <random>
#include <set>
#include <thread>

#include "compare_runs.h"
#include "processes.h"

namespace ultrascale::test {
namespace {

// A stage and a number of ranks, with a global batch of 12 sequences.
struct Setting {
    int stage, ranks, micro_batch, grad_accum = 1;
    std::string text() const { return fmt::format("stage {} at {} ranks", stage, ranks); }
};

Outcome train_12(const Setting& s, const std::string& arguments) {
    SCOPED_TRACE(s.text());
    const Outcome run =
        train(s.ranks, "02_zero",
              fmt::format("--stage {} --seq 40 --lr 1e-3 --micro-batch {} --grad-accum {} {}",
                          s.stage, s.micro_batch, s.grad_accum, arguments));
    EXPECT_EQ(run.summary.at("configuration").at("global_batch"), 12);
    return run;
}
Outcome train_12(const std::string& chapter, int ranks, const std::string& arguments) {
    return train(ranks, chapter,
                 fmt::format("--seq 40 --lr 1e-3 --micro-batch {} --no-verify {}",
                             12 / std::max(ranks, 1), arguments));
}

const Setting others[] = {{0, 2, 6}, {1, 4, 3}, {2, 1, 12}, {3, 2, 3, 2}, {1, 3, 2, 2}};

// Trains 2 steps, saves, and trains 3 more from there: with the same setting, at another stage, on
// other numbers of ranks, and in other chapters.
void expect_resumes(const Setting& saved, const SmallModel& model, const std::string& arguments,
                    double bound) {
    TempDir dir;
    const Outcome straight = train_12(
        saved, fmt::format("--model {} --steps 5 --no-verify {}", model.path(), arguments));
    train_12(saved, fmt::format("--model {} --steps 2 --no-verify --save {} {}", model.path(),
                                dir / "saved", arguments));
    const std::vector<double> losses = straight.of("loss"), rest(losses.begin() + 2, losses.end());
    const std::string go_on = fmt::format("--steps 3 --load {} {}", dir / "saved", arguments);
    const auto expect_goes_on = [&](const Outcome& run, double within) {
        EXPECT_EQ(run.of("step"), (std::vector<double>{3, 4, 5}));
        EXPECT_LE(largest_difference(run.of("loss"), rest), within);
    };
    for (int stage : {0, 1, 2, 3}) {  // the same bits with the same ranks on a CPU
        SCOPED_TRACE(fmt::format("stage {}", stage));
        expect_goes_on(train_12({stage, saved.ranks, saved.micro_batch}, go_on + " --no-verify"),
                       on_gpu ? 1e-5 : 0);
    }
    for (const Setting& other : others) {
        SCOPED_TRACE(other.text());
        expect_goes_on(train_12(other, go_on + " --verify"), bound);
    }
    for (const auto& [chapter, ranks] :
         {std::pair{"00_single_gpu", 0}, std::pair{"01_data_parallel", 3}}) {
        SCOPED_TRACE(chapter);
        expect_goes_on(train_12(chapter, ranks, go_on), bound);
    }
}

TEST(ZeroCheckpoint, GoesOnAnywhere) {
    const SmallModel model;
    expect_resumes({3, 3, 4}, model, "", on_gpu ? 1e-5 : 1e-6);
}

// The run saves with the states on the host and continues with them on the device, and vice versa.
TEST(ZeroCheckpoint, GoesOnWhereverTheStatesLive) {
    const SmallModel model;
    for (const char* dtype : {"fp32", "bf16"}) {
        TempDir dir;
        const auto with = [&](int stage, const std::string& arguments) {
            return train_12({stage, 3, 4},
                            fmt::format("--dtype {} --no-verify {}", dtype, arguments));
        };
        const std::string fresh = fmt::format("--model {} ", model.path());
        const std::vector<double> losses = with(2, fresh + "--steps 5").of("loss"),
                                  rest(losses.begin() + 2, losses.end());
        with(3,
             fmt::format("{} --steps 2 --offload optimizer --save {}", fresh, dir / "from_host"));
        with(2, fmt::format("{} --steps 2 --save {}", fresh, dir / "from_device"));
        for (const auto& [from, to] : {std::pair{"from_host", "none"},
                                       {"from_host", "optimizer"},
                                       {"from_device", "optimizer"}}) {
            SCOPED_TRACE(fmt::format("{}, {} to {}", dtype, from, to));
            const Outcome run =
                with(1, fmt::format("--steps 3 --load {} --offload {}", dir / from, to));
            EXPECT_LE(largest_difference(run.of("loss"), rest), on_gpu ? 1e-3 : 0);
        }
    }
}

// Master weights are saved, too. In bf16 another order of sums rounds differently.
TEST(ZeroCheckpoint, GoesOnAnywhereInBf16) {
    const SmallModel tied(true);
    expect_resumes({1, 4, 3}, tied, "--dtype bf16 --shuffle", 5e-3);
}

// A loaded checkpoint is saved unchanged with any sharding.
TEST(ZeroCheckpoint, ComesBackBitwise) {
    for (const char* dtype : {"fp32", "bf16"}) {
        TempDir dir;
        const SmallModel model;
        const auto with = [&](int stage, int ranks, const std::string& arguments) {
            train(ranks, "02_zero",
                  fmt::format("--stage {} --seq 40 --micro-batch 1 --no-verify --dtype {} {}",
                              stage, dtype, arguments));
        };
        with(0, 2, fmt::format("--model {} --steps 2 --save {}", model.path(), dir / "first"));
        for (const auto& [stage, ranks] :
             {std::pair{0, 3}, std::pair{1, 2}, std::pair{2, 1}, std::pair{3, 4}}) {
            SCOPED_TRACE(fmt::format("{} stage {} at {} ranks", dtype, stage, ranks));
            with(stage, ranks,
                 fmt::format("--load {} --steps 0 --save {}", dir / "first", dir / "again"));
            expect_same_checkpoints(dir / "again", dir / "first");
        }
    }
}

// At any stage and number of ranks a Hugging Face checkpoint gives the losses of 00_single_gpu.
TEST(ZeroCheckpoint, HuggingFaceAnywhere) {
    for (const char* name : {"gqa_untied", "tied_head_dim", "llama3_bf16"}) {
        SCOPED_TRACE(name);
        const std::string arguments = fmt::format("{} --steps 4 --no-verify", load(name));
        const Outcome single = train_12("00_single_gpu", 0, arguments);
        for (const Setting& setting : {Setting{0, 4, 3},
                                       {1, 2, 6},
                                       {1, 3, 2, 2},
                                       {2, 3, 4},
                                       {3, 1, 12},
                                       {3, 2, 6},
                                       {3, 4, 3}}) {
            SCOPED_TRACE(setting.text());
            EXPECT_LE(
                largest_difference(train_12(setting, arguments).of("loss"), single.of("loss")),
                1e-5);
        }
    }
}

// kill -9 of all processes while they save, at random moments: there is always a complete
// checkpoint, the previous or the new one, from which training resumes as if nothing had happened.
TEST(ZeroCheckpoint, SurvivesBeingKilledWhileSaving) {
    TempDir dir;
    const SmallModel model;
    const std::string saved = dir / "saved",
                      common = "--stage 3 --seq 40 --micro-batch 1 --no-verify ";
    const std::vector<double> losses =
        train(3, "02_zero", common + fmt::format("--stage 0 --model {} --steps 16", model.path()))
            .of("loss");
    train(3, "02_zero",
          common + fmt::format("--model {} --steps 1 --save {}", model.path(), saved));
    std::mt19937 random(1);
    std::set<int64_t> seen;
    for (int round = 0; round < 8; ++round) {
        const ProcessMark mark;
        const int delay =
            int(random() % (2000u << round));  // microseconds after the save has begun
        std::thread killer([&] {
            const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
            while (!std::filesystem::exists(saved + "/.saving") &&
                   std::chrono::steady_clock::now() < end)
                std::this_thread::yield();
            std::this_thread::sleep_for(std::chrono::microseconds(delay));
            mark.kill_all();
        });
        run_ranks(3, "02_zero",
                  common + fmt::format("--steps 1 --load {0} --save {0} --peak-tflops 1", saved),
                  60);
        killer.join();
        mark.kill_all();
        const Outcome next =
            train(3, "02_zero", common + fmt::format("--steps 1 --load {}", saved));
        ASSERT_EQ(next.steps.size(), 1u);
        // Removes half a save, which the next save would discard: the beginning of the save was
        // observed.
        std::filesystem::remove_all(saved + "/.saving");
        const auto step = next.steps[0].at("step").get<int64_t>();
        seen.insert(step - 1);
        EXPECT_LE(std::abs(next.of("loss")[0] - losses.at(size_t(step - 1))), on_gpu ? 1e-5 : 0)
            << "from step " << step - 1;
    }
    EXPECT_GE(*seen.begin(), 1);
    RecordProperty("checkpoints", int(seen.size()));
}

}  // namespace
}  // namespace ultrascale::test
