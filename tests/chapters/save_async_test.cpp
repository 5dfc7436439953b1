// --save-async: checkpoints are written beside the steps. They have the same bytes as those for
// which the training waits, and a run that is killed while it writes one resumes from the one
// before.
#include <atomic>
#include <thread>

#include "compare_runs.h"
#include "processes.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

constexpr const char* course = "--seq 24 --micro-batch 2 --lr 1e-2 --no-verify --steps 7";

// The bytes of the copies of all ranks. Each rank's are as predicted.
int64_t copies_of(const Outcome& run) {
    int64_t bytes = 0;
    for (const Json& rank : run.summary.at("memory_by_rank"))
        if (rank.contains("checkpoint copies")) {
            const Json& copies = rank["checkpoint copies"];
            EXPECT_EQ(copies.at("predicted"), copies.at("measured"));
            bytes += copies.at("measured").get<int64_t>();
        }
    return bytes;
}

TEST(SaveAsync, SavesTheSameFiles) {
    const SmallModel small;
    const SplitModel split;
    struct Case {
        int ranks;
        const char *chapter, *arguments;
        int64_t bytes = 0;  // copied for each parameter, by all ranks together; 0: not compared
        bool splits = false;
    };
    for (const Case& c : {
             Case{0, "00_single_gpu", "--grad-accum 2", 12},  // a value and two moments
             {0, "00_single_gpu", "--dtype bf16", 14},        // and the master copy, 2 + 3 x 4
             {2, "01_data_parallel", "--sync bucket", 12},
             {3, "02_zero", "--stage 1 --gather-overlap forward", 12},
             {2, "02_zero", "--stage 3", 12},
             {4, "02_zero", "--stage 3", 12},
             {2, "02_zero", "--stage 2 --offload optimizer"},
             {2, "05_pipeline", "--schedule zb-h1 --grad-accum 3", 12},
             {4, "09_5d_parallel", "--tp 2 --zero 1", 12, true},
         }) {
        SCOPED_TRACE(fmt::format("{} ranks, {} {}", c.ranks, c.chapter, c.arguments));
        const TempDir dir;
        const auto save = [&](const std::string& folder, const char* more) {
            return train(c.ranks, c.chapter,
                         fmt::format("{} --model {} {} --save {} --save-every 2 {}", course,
                                     c.splits ? split.path() : small.path(), c.arguments,
                                     dir / folder, more));
        };
        const Outcome waiting = save("waiting", ""), beside = save("beside", "--save-async");
        expect_the_same(beside, waiting);
        expect_as_predicted(beside);
        const auto files = files_in(dir / "waiting"), same = files_in(dir / "beside");
        EXPECT_GE(files.size(), 12u);  // two checkpoints, and the end
        EXPECT_EQ(same.size(), files.size());
        for (const auto& [name, content] : files)
            EXPECT_TRUE(same.contains(name) && (on_gpu || same.at(name) == content)) << name;
        EXPECT_EQ(copies_of(waiting), 0);
        const auto parameters = beside.summary.at("configuration").at("parameters").get<int64_t>();
        EXPECT_GT(copies_of(beside), 0);
        if (c.bytes > 0) {
            EXPECT_EQ(copies_of(beside), c.bytes * parameters);
        }
        EXPECT_EQ(beside.summary.at("saves").at("count"), 3);
    }
}

TEST(SaveAsync, IsRefusedWithoutSaveEvery) {
    const TempDir dir;
    expect_one_error_line(run("00_single_gpu", "--save-async --save " + dir.path()),
                          {"--save-async", "--save-every"});
}

// Step 4's folder cannot be made. The error comes at the end of a later step.
TEST(SaveAsync, AnErrorEndsTheRun) {
    const SmallModel model;
    for (int ranks : {0, 2}) {
        const TempDir dir;
        fs::create_directories(dir / "saved");
        put(dir / "saved/checkpoint-4", "a file");
        const std::string arguments =
            fmt::format("{} --model {} --save {} --save-every 2 --save-async", course, model.path(),
                        dir / "saved");
        const std::string telling = dir / "saved/checkpoint-4: the directory cannot be made";
        if (ranks == 0) {
            expect_one_error_line(run("00_single_gpu", arguments), {"error: " + telling});
        } else {  // the launcher adds a line of its own
            const Outcome outcome = run_ranks(ranks, "02_zero", arguments + " --stage 3");
            EXPECT_EQ(outcome.exit_code, 2);
            EXPECT_TRUE(outcome.err.starts_with("error: rank 0: " + telling)) << outcome.err;
        }
        EXPECT_EQ(slurp(dir / "saved/latest_checkpoint"), "checkpoint-2\n");
        EXPECT_FALSE(fs::exists(dir / "saved/config.json"));
    }
}

// The model is large enough that the file system takes a while for its states.
TEST(SaveAsync, AKillWhileItWritesLeavesTheLastWholeOne) {
    const TempDir model;
    put(model / "config.json", config_json({{"num_hidden_layers", 2},
                                            {"hidden_size", 256},
                                            {"intermediate_size", 1024},
                                            {"vocab_size", 8192}}));
    for (int ranks : {0, 2}) {
        const char* const chapter = ranks == 0 ? "00_single_gpu" : "02_zero";
        const std::string common = fmt::format("{} {}", course, ranks == 0 ? "" : "--stage 3");
        const Outcome straight =
            train(ranks, chapter, fmt::format("{} --model {}", common, model.path()));
        bool killed_in_time = false;
        for (int attempt = 0; attempt < 6 && !killed_in_time; ++attempt) {
            const TempDir dir;
            const std::string saved = dir / "saved", staging = saved + "/checkpoint-4/.saving";
            {
                const ProcessMark mark;
                std::atomic<bool> over = false;
                std::thread killer([&] {
                    while (!over && !fs::exists(staging + "/model.safetensors"))
                        std::this_thread::sleep_for(std::chrono::microseconds(200));
                    mark.kill_all();
                });
                const std::string arguments =
                    fmt::format("{} --model {} --save {} --save-every 2 --save-async", common,
                                model.path(), saved);
                ranks == 0 ? run(chapter, arguments) : run_ranks(ranks, chapter, arguments);
                over = true;
                killer.join();
            }
            killed_in_time = fs::exists(staging) && !fs::exists(staging + "/commit");
            if (!killed_in_time) continue;
            EXPECT_EQ(slurp(saved + "/latest_checkpoint"), "checkpoint-2\n");
            const Outcome rest =
                train(ranks, chapter, fmt::format("{} --load {} --steps 5", common, saved));
            ASSERT_EQ(rest.of("step"), (std::vector<double>{3, 4, 5, 6, 7}));
            for (const char* field : {"loss", "grad_norm"}) {
                const std::vector<double> all = straight.of(field);
                EXPECT_LE(largest_difference(rest.of(field), {all.begin() + 2, all.end()}),
                          on_gpu ? 1e-4 : 0);
            }
        }
        EXPECT_TRUE(killed_in_time) << ranks;
    }
}

}  // namespace
}  // namespace ultrascale::test
