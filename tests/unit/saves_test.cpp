// Which checkpoints a run keeps, and which one --load reads.
#include "train/saves.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <set>

#include "files/checkpoint.h"
#include "files/checkpoint_folders.h"
#include "tests/test_files.h"

namespace ultrascale {
namespace {

namespace fs = std::filesystem;
using test::expect_error;
using test::put;
using test::slurp;
using test::TempDir;

class SavesOfARun : public testing::Test {
protected:
    // Writes what saves.cpp recognizes as a checkpoint.
    static void write(const std::string& folder) {
        StagedFiles staged(folder);
        put(staged.staging() + "/trainer_state.json", "{}");
        std::vector<std::string> stale;
        if (fs::exists(folder + "/latest_checkpoint")) stale.push_back("latest_checkpoint");
        staged.commit(stale);
    }
    void save(int64_t every, const std::vector<int64_t>& steps) const {
        Options options;
        options.save = dir_.path(), options.save_every = every;
        Saves saves(options, write, [] { return true; });
        for (int64_t step : steps) EXPECT_TRUE(saves.after_step(step));
    }
    void save_at_end(int64_t step) const {
        Options options;
        options.save = dir_.path();
        EXPECT_TRUE(Saves(options, write, [] { return true; }).at_end(step));
    }
    std::set<std::string> names() const {
        std::set<std::string> all;
        for (const auto& entry : fs::directory_iterator(dir_.path()))
            all.insert(entry.path().filename());
        return all;
    }
    using Names = std::set<std::string>;
    const TempDir dir_;
};

TEST_F(SavesOfARun, EveryNStepsTheLastTwoAreKept) {
    save(3, {1, 2, 3, 4, 5});
    EXPECT_EQ(names(), (Names{"checkpoint-3", "latest_checkpoint"}));
    save(3, {6});
    EXPECT_EQ(names(), (Names{"checkpoint-3", "checkpoint-6", "latest_checkpoint"}));
    save(3, {7, 8, 9, 10, 11, 12, 13});
    EXPECT_EQ(names(), (Names{"checkpoint-9", "checkpoint-12", "latest_checkpoint"}));
    EXPECT_EQ(folder_to_load(dir_.path()), dir_ / "checkpoint-12");
    EXPECT_EQ(folder_to_load(dir_ / "checkpoint-9"), dir_ / "checkpoint-9");
    save_at_end(13);
    EXPECT_EQ(names(), (Names{"checkpoint-9", "checkpoint-12", "trainer_state.json"}));
    EXPECT_EQ(folder_to_load(dir_.path()), dir_.path());
    save(0, {14});
    EXPECT_EQ(names(), (Names{"checkpoint-9", "checkpoint-12", "trainer_state.json"}));
}

// Weights that are not finite are not saved, so the previous checkpoint stays.
TEST_F(SavesOfARun, OnlyFiniteWeights) {
    Options options;
    options.save = dir_.path(), options.save_every = 2;
    bool finite = true;
    Saves saves(options, write, [&] { return finite; });
    EXPECT_EQ(saves.last_finite(), "");
    EXPECT_TRUE(saves.after_step(2) && saves.after_step(3));
    finite = false;
    EXPECT_TRUE(saves.after_step(5));  // it saves nothing, and does not look
    EXPECT_FALSE(saves.after_step(4));
    EXPECT_FALSE(saves.at_end(5));
    EXPECT_EQ(saves.last_finite(), dir_ / "checkpoint-2");
    EXPECT_EQ(names(), (Names{"checkpoint-2", "latest_checkpoint"}));

    options.load = dir_ / "checkpoint-2";
    EXPECT_EQ(Saves(options, write, [] { return false; }).last_finite(), "");
    EXPECT_EQ(Saves(options, write, [] { return true; }).last_finite(), options.load);
    options.steps = 0;  // copies the loaded checkpoint
    EXPECT_TRUE(Saves(options, write, [] { return false; }).at_end(0));
}

// --save-async: only the copy stops the training. The next save waits for the one before.
TEST_F(SavesOfARun, BesideTheSteps) {
    Options options;
    options.save = dir_.path(), options.save_every = 2;
    std::promise<void> may_write;
    const std::shared_future<void> allowed = may_write.get_future().share();
    std::atomic<int> copies = 0, written = 0;
    const auto slowly = [&](const std::string& folder) {
        allowed.wait();
        EXPECT_EQ(++written, copies.load());  // no copy is replaced before it is written
        write(folder);
    };
    Saves saves(options, slowly, [] { return true; }, {[&] { ++copies; }, 1});
    EXPECT_TRUE(saves.after_step(2) && saves.after_step(3));
    EXPECT_EQ(copies, 1);
    EXPECT_FALSE(fs::exists(dir_ / "latest_checkpoint"));
    may_write.set_value();
    EXPECT_TRUE(saves.after_step(4) && saves.after_step(6));
    EXPECT_TRUE(fs::exists(dir_ / "checkpoint-4/trainer_state.json"));
    saves.wait();
    EXPECT_EQ(names(), (Names{"checkpoint-4", "checkpoint-6", "latest_checkpoint"}));
    EXPECT_TRUE(saves.at_end(6));
    EXPECT_EQ(names(), (Names{"checkpoint-4", "checkpoint-6", "trainer_state.json"}));
    EXPECT_EQ(copies, 4);
}

TEST_F(SavesOfARun, AnErrorBesideTheStepsIsThrownAtTheEndOfAStep) {
    Options options;
    options.save = dir_.path(), options.save_every = 10;
    Saves saves(
        options, [](const std::string&) { user_error("no room"); }, [] { return true; },
        {[] {}, 1});
    EXPECT_TRUE(saves.after_step(10));
    expect_error(
        [&] {
            for (int64_t step = 11;; ++step) EXPECT_TRUE(saves.after_step(step));
        },
        "no room");
    EXPECT_FALSE(fs::exists(dir_ / "latest_checkpoint"));
    saves.wait();  // there is nothing left to wait for
}

// Another run, with more steps than this one, has left checkpoints and its final state in the
// folder.
TEST_F(SavesOfARun, AnotherRunsStateIsNeverTakenForThisOnes) {
    save(50, {50, 100, 150});
    save_at_end(150);
    save(10, {10});  // a new run begins
    EXPECT_EQ(names(), (Names{"checkpoint-10", "latest_checkpoint", "trainer_state.json"}));
    EXPECT_EQ(folder_to_load(dir_.path()), dir_ / "checkpoint-10");
    save(10, {20, 30, 40});
    save(10, {20});  // a run that continued from checkpoint-10
    EXPECT_EQ(folder_to_load(dir_.path()), dir_ / "checkpoint-20");
    EXPECT_EQ(names(), (Names{"checkpoint-20", "latest_checkpoint", "trainer_state.json"}));
    save_at_end(15);  // and one that saves only at its end
    EXPECT_EQ(names(), (Names{"trainer_state.json"}));
    EXPECT_EQ(folder_to_load(dir_.path()), dir_.path());
}

// After a kill, an unfinished save is neither loaded nor counted as one of the two checkpoints.
TEST_F(SavesOfARun, WhatAKilledRunLeft) {
    save(1, {1, 2});
    fs::create_directories(dir_ / "checkpoint-3/.saving");
    put(dir_ / "checkpoint-3/.saving/trainer_state.json", "{}");
    EXPECT_EQ(folder_to_load(dir_.path()), dir_ / "checkpoint-2");
    fs::create_directories(dir_ / ".removing/checkpoint-1");
    save(4, {4});
    EXPECT_EQ(names(), (Names{"checkpoint-2", "checkpoint-4", "latest_checkpoint"}));

    // The save at the end is committed, but not all of its files have moved yet.
    fs::create_directories(dir_ / ".saving");
    put(dir_ / ".saving/trainer_state.json", "{}");
    put(dir_ / ".saving/commit", "move trainer_state.json\nremove latest_checkpoint\n");
    EXPECT_EQ(folder_to_load(dir_.path()), dir_.path());
    EXPECT_EQ(names(), (Names{"checkpoint-2", "checkpoint-4", "trainer_state.json"}));
}

TEST_F(SavesOfARun, OtherNamesStay) {
    for (const char* name :
         {"checkpoint-x", "checkpoint-07", "checkpoint--2", "my-checkpoint-1", "logs"})
        fs::create_directory(dir_ / name);
    put(dir_ / "checkpoint-1", "a file");
    const Names before = names();
    save(2, {2, 4, 6});
    save_at_end(1);
    Names after = names();
    EXPECT_EQ(after.erase("trainer_state.json"), 1u);
    EXPECT_EQ(after, before);
}

TEST_F(SavesOfARun, WhatLatestCheckpointNamesMustBeThere) {
    EXPECT_EQ(folder_to_load(dir_ / "absent"), dir_ / "absent");
    EXPECT_EQ(folder_to_load(dir_.path()), dir_.path());
    for (const char* name : {"", "../checkpoint-1", "checkpoint-", "checkpoint-1\n\n",
                             "checkpoint-99999999999999999999"}) {
        put(dir_ / "latest_checkpoint", name);
        expect_error([&] { folder_to_load(dir_.path()); },
                     "should name a folder such as checkpoint-100");
    }
    put(dir_ / "latest_checkpoint", "checkpoint-3\n");
    expect_error([&] { folder_to_load(dir_.path()); }, "names checkpoint-3, which is not there");
    write(dir_ / "checkpoint-3");
    EXPECT_EQ(folder_to_load(dir_.path()), dir_ / "checkpoint-3");
}

TEST(CheckCanSave, SaysSoBeforeTheTraining) {
    const TempDir dir;
    put(dir / "file", "");
    expect_error([&] { check_can_save(dir / "file"); }, "file: the directory cannot be made: ");
    expect_error([&] { check_can_save(dir / "file/below"); },
                 "file/below: the directory cannot be made: Not a directory");
    check_can_save(dir / "a/b");
    EXPECT_TRUE(fs::is_empty(dir / "a/b"));
    if (fs::exists("/proc/self"))
        expect_error([&] { check_can_save("/proc/self"); }, "cannot be written");
}

}  // namespace
}  // namespace ultrascale
