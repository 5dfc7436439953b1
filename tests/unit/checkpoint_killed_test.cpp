// A run that is killed while it saves leaves one complete checkpoint: the previous or the new one.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>

#include "core/device.h"
#include "saved_checkpoint.h"

namespace ultrascale {
namespace {

using test::expect_error;
using test::put;
using test::TempDir;
namespace fs = std::filesystem;

// A kill before the commit: the previous checkpoint stays valid; the next save removes the
// incomplete files.
TEST_F(SavedCheckpoint, SurvivesAKillWhileWriting) {
    save(7);
    fs::create_directory(dir / ".saving");
    put(dir / ".saving/model.safetensors", "half");
    put(dir / ".saving/commit.123.tmp", "move model.safetensors\n");
    load(dir.path());
    EXPECT_EQ(load_training_state(dir.path(), blank()).step, 7);
    save(8);
    EXPECT_EQ(load_training_state(dir.path(), blank()).step, 8);
    EXPECT_EQ(files().count(".saving"), 0u);
}

// A kill after the commit, when some files have already been renamed: the new checkpoint is valid.
TEST_F(SavedCheckpoint, SurvivesAKillWhileRenaming) {
    TempDir newer;
    save(7);
    TrainingState state{.step = 8};
    save_checkpoint(newer.path(), config, model->parameters(),
                    {.max_shard_bytes = 100000, .state = &state, .optimizer = optimizer});
    ASSERT_TRUE(fs::exists(newer / "model.safetensors.index.json"));
    fs::create_directory(dir / ".saving");
    std::string commit = "remove model.safetensors\n";
    for (const auto& f : fs::directory_iterator(newer.path())) {
        std::string name = f.path().filename();
        fs::copy(f.path(), name == "config.json" ? dir / name : dir / (".saving/" + name),
                 fs::copy_options::overwrite_existing);
        commit += "move " + name + "\n";
    }
    put(dir / ".saving/commit", commit);
    EXPECT_EQ(load_training_state(dir.path(), blank()).step, 8);
    EXPECT_EQ(files().count(".saving"), 0u);
    EXPECT_EQ(files().count("model.safetensors"), 0u);
    load(dir.path());

    fs::create_directory(dir / ".saving");
    put(dir / ".saving/commit", "remove ../x\n");
    expect_error([&] { load_config(dir.path()); }, "names a file outside the directory: ../x");
}

// A process is really killed, at random moments. Each time there is one complete checkpoint, whose
// files belong together.
TEST_F(SavedCheckpoint, SurvivesBeingKilledAtAnyMoment) {
    if (device_is_gpu()) GTEST_SKIP() << "CUDA does not work in a forked process";
    auto save_all = [&](int64_t step) {
        std::vector<float> values(40, float(step));
        for (TensorPart& part : optimizer) part.tensor.copy_from_host(values.data());
        model->parameters().find("model.norm.weight")->value.copy_from_host(values.data());
        // alternately in one file and in shards
        save(step, step % 2 ? default_shard_bytes : 50000);
    };
    const auto start = std::chrono::steady_clock::now();
    save_all(0);
    const double save_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::set<int64_t> seen;
    for (int round = 0; round < 25 || (seen.size() < 2 && round < 200);
         ++round) {  // longer on a busy disk
        pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            for (int64_t step = 1; step < 1000; ++step) save_all(step);
            _exit(0);
        }
        usleep(
            useconds_t(4e6 * save_seconds * (1 + round / 10.0) * Random(3, "kill").uniform(round)));
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        std::vector<TensorPart> read = blank();
        const int64_t step = load_training_state(dir.path(), read).step;
        seen.insert(step);
        const auto again = load(dir.path());
        const std::vector<float> expected(40, float(step));
        EXPECT_EQ(read[0].tensor.to_host_float(), expected);
        EXPECT_EQ(read[1].tensor.to_host_float(), expected);
        EXPECT_EQ(again->parameters().find("model.norm.weight")->value.to_host_float(), expected);
    }
    EXPECT_GT(seen.size(), 1u);
}

}  // namespace
}  // namespace ultrascale
