// A run that saves in between (--save-every) trains like one that does not. A run that resumes
// reads the same data as an uninterrupted one.
#include "compare_runs.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

std::vector<double> from(const std::vector<double>& values, size_t first) {
    return {values.begin() + long(first), values.end()};
}

// In every chapter the losses are the same, memory and communication are as predicted, and a run
// resumed from any of the checkpoints has the same bits.
TEST(SaveEvery, LeavesTheTrainingAsItIs) {
    const SmallModel model;
    struct Case {
        int ranks;
        const char *chapter, *arguments;
    };
    for (const Case& c : {Case{0, "00_single_gpu", "--grad-accum 2 --profile"},
                          {2, "01_data_parallel", "--sync overlap"},
                          {3, "02_zero", "--stage 1 --gather-overlap forward"},
                          {2, "02_zero", "--stage 3 --grad-accum 2"},
                          {2, "03_tensor_parallel", "--sequence-parallel --overlap async"},
                          {2, "04_context_parallel", "--bidirectional on --grad-accum 2"},
                          {2, "05_pipeline", "--schedule zb-h1 --grad-accum 3"}}) {
        SCOPED_TRACE(fmt::format("{} {}", c.chapter, c.arguments));
        TempDir dir;
        put(dir / "other.txt", std::string(500, 'e'));
        const std::string common =
            fmt::format("--seq 24 --micro-batch 2 --lr 1e-2 {}", c.arguments);
        const std::string fresh = fmt::format("{} --model {} --steps 7", common, model.path());
        const Outcome straight = train(c.ranks, c.chapter, fresh);
        const Outcome saving =
            train(c.ranks, c.chapter,
                  fmt::format("{} --verify --save {} --save-every 2 --val-data {} --val-every 3",
                              fresh, dir / "saved", dir / "other.txt"));
        expect_the_same(saving, straight);
        expect_verified(saving);
        EXPECT_TRUE(contains(
            saving.out, fmt::format("every 2 steps to {}/checkpoint-STEP; the last two are kept",
                                    dir / "saved")));
        EXPECT_TRUE(fs::exists(dir / "saved/checkpoint-4") &&
                    fs::exists(dir / "saved/checkpoint-6"));
        EXPECT_FALSE(fs::exists(dir / "saved/checkpoint-2") ||
                     fs::exists(dir / "saved/latest_checkpoint"));
        for (int step : {4, 6}) {
            const std::string folder = fmt::format("{}/checkpoint-{}", dir / "saved", step);
            const Outcome rest =
                train(c.ranks, c.chapter,
                      fmt::format("{} --load {} --steps {}", common, folder, 7 - step));
            EXPECT_LE(largest_difference(rest.of("loss"), from(straight.of("loss"), size_t(step))),
                      on_gpu ? 1e-5 : 0);
            EXPECT_TRUE(
                contains(rest.out, fmt::format("resumes from {}, after step {}", folder, step)))
                << rest.out;
        }
        if (c.ranks > 0) continue;
        fs::remove(dir / "saved/config.json");
        put(dir / "saved/latest_checkpoint", "checkpoint-4\n");  // as if it had been killed then
        const Outcome last =
            train(c.chapter, fmt::format("{} --load {} --steps 3", common, dir / "saved"));
        EXPECT_EQ(last.of("step"), (std::vector<double>{5, 6, 7}));
    }
}

TEST(SaveEvery, Refuses) {
    const auto refuses = [](int ranks, const char* chapter, const std::string& arguments,
                            const std::vector<std::string>& telling) {
        SCOPED_TRACE(arguments);
        expect_one_error_line(
            ranks == 0 ? run(chapter, arguments) : run_ranks(ranks, chapter, arguments, 60),
            telling);
    };
    TempDir dir;
    refuses(0, "00_single_gpu", "--save-every 2", {"--save-every", "--save"});
    refuses(0, "00_single_gpu", fmt::format("--save {} --save-every 0", dir.path()),
            {"--save-every", "0"});
    refuses(2, "01_data_parallel",
            fmt::format("--sync diloco --save {} --save-every 2", dir.path()),
            {"--save-every", "--sync diloco", "optimizer state"});
    put(dir / "latest_checkpoint", "checkpoint-8\n");
    refuses(2, "02_zero", "--load " + dir.path(),
            {"latest_checkpoint", "checkpoint-8", "not there"});
}

class ResumedData : public testing::Test {
protected:
    void SetUp() override {
        put(data, text(400));
        const std::string relative = fs::relative(data);  // to where this test runs
        straight = go("--layers 1 --steps 4 --data " + relative);
        go(fmt::format("--layers 1 --steps 2 --data {} --save {}", relative, saved));
    }
    static std::string text(int bytes) {
        std::string all;
        for (int i = 0; i < bytes; ++i) all += char('a' + i * i % 23);
        return all;
    }
    static Outcome go(const std::string& arguments, int ranks = 0) {
        return train(
            ranks, ranks ? "02_zero" : "00_single_gpu",
            fmt::format("--seq 16 --micro-batch {} --no-verify {}", ranks ? 1 : 2, arguments));
    }
    Outcome resume(const std::string& arguments = "", int ranks = 0) {
        return go(fmt::format("--steps 2 --load {} {}", saved, arguments), ranks);
    }
    void expect_says(const std::string& arguments, const std::vector<std::string>& telling) {
        const Outcome outcome = resume(arguments);
        for (const std::string& part : telling)
            EXPECT_TRUE(contains(outcome.out, part))
                << "without \"" << part << "\": " << outcome.out;
    }
    void expect_refused(const std::vector<std::string>& telling) {
        expect_ranks_refuse(0, "00_single_gpu", "--load " + saved, telling);
        expect_ranks_refuse(2, "02_zero", "--load " + saved, telling);
    }
    void change_state(const std::function<void(Json&)>& change) {
        Json state = Json::parse(slurp(saved + "/trainer_state.json"));
        change(state);
        put(saved + "/trainer_state.json", state.dump());
    }
    const TempDir dir;
    const std::string data = dir / "data.txt", saved = dir / "saved";
    Outcome straight;
};

TEST_F(ResumedData, IsWhatTheRunHasRead) {
    const Json state = Json::parse(slurp(saved + "/trainer_state.json"));
    EXPECT_EQ(state.at("data"), data);
    EXPECT_EQ(state.at("data_tokens"), 400);
    for (int ranks : {0, 2}) {
        const Outcome rest = resume("", ranks);
        EXPECT_LE(largest_difference(rest.of("loss"), from(straight.of("loss"), 2)),
                  ranks == 0 && !on_gpu ? 0 : 1e-5);
        EXPECT_TRUE(contains(
            rest.out,
            fmt::format("data    {} (text, each byte a token): 400 tokens, 24 samples\n", data)))
            << rest.out;
        EXPECT_FALSE(contains(rest.out, "so far")) << rest.out;
    }
    fs::rename(data, dir / "moved.txt");
    expect_refused({data, "not there any more", "--data"});
    expect_says("--data " + dir / "moved.txt",
                {"moved.txt", fmt::format("read {} so far: the same number of tokens", data)});
}

TEST_F(ResumedData, OtherDataIsSaidOrRefused) {
    put(dir / "longer.txt", text(500));
    const std::string longer = "--data " + dir / "longer.txt";
    expect_says(longer,
                {"500 tokens", fmt::format("read {} so far: 400 tokens, other data", data)});
    put(data, text(300));
    expect_refused({data, "has 300 tokens", "400", "--data"});
    expect_says("--data " + data, {"300 tokens", "so far: 400 tokens, other data"});

    resume(fmt::format("{} --save {}", longer, saved));  // from now on the run is that file's
    EXPECT_EQ(Json::parse(slurp(saved + "/trainer_state.json")).at("data_tokens"), 500);
    EXPECT_FALSE(contains(resume(longer).out, "so far"));
}

TEST_F(ResumedData, OurOwnText) {
    go("--layers 1 --steps 2 --save " + saved);
    EXPECT_EQ(Json::parse(slurp(saved + "/trainer_state.json")).at("data"), "built-in");
    EXPECT_TRUE(contains(resume().out, "data    built-in text: "));
    EXPECT_FALSE(contains(resume().out, "so far"));
    expect_says("--data " + data, {"read the built-in text so far: ", "other data"});
    change_state([](Json& state) { state["data_tokens"] = 7; });
    expect_refused({"built-in text", "7"});
}

TEST_F(ResumedData, OfAnOlderVersionIsNotKnown) {
    change_state([](Json& state) { state.erase("data"), state.erase("data_tokens"); });
    expect_says("", {"built-in text", "does not record"});
    expect_says("--data " + data, {"400 tokens", "does not record"});
}

TEST_F(ResumedData, WrongRecords) {
    change_state([](Json& state) { state["data"] = 5; });
    expect_refused({"trainer_state.json", "\"data\""});
    change_state([&](Json& state) { state["data"] = data, state["data_tokens"] = 0; });
    expect_refused({"trainer_state.json", "data_tokens = 0"});
    change_state([](Json& state) { state["data"] = "/no\nsuch", state["data_tokens"] = 5; });
    expect_refused({"/no\\x0asuch", "not there any more"});
}

TEST(DataReadAs, IsInTheHeader) {
    TempDir dir;
    const std::string zeros(400, '\0');
    put(dir / "train.tokens", zeros), put(dir / "train.bin", zeros),
        put(dir / "notes", std::string(400, 'x'));
    const auto header = [&](const std::string& name) {
        return run("00_single_gpu",
                   fmt::format("--layers 1 --seq 16 --steps 0 --data {0} --val-data {0}",
                               dir / name))
            .out;
    };
    const auto says = [&](const std::string& name, const std::string& words) {
        const std::string out = header(name);
        for (const char* line : {"data    ", "valid.  "})
            EXPECT_TRUE(contains(out, fmt::format("  {}{} ({}", line, dir / name, words))) << out;
    };
    says("train.bin", "uint16 tokens): 200 tokens");
    says("notes", "text, each byte a token): 400 tokens");
    says("train.tokens",
         "each byte a token, but it is not text; a file of tokens must be named .bin): 400 tokens");
}

}  // namespace
}  // namespace ultrascale::test
