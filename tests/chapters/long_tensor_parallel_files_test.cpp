// 03_tensor_parallel loads Hugging Face's checkpoints, saves them unchanged, and continues them on
// any grid of ranks; and the options that it refuses.
#include "compare_runs.h"
#include "processes.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "03_tensor_parallel";

struct Grid {
    int ranks;
    const char* arguments;  // a global batch of 4
};
const Grid grids[] = {{1, "--micro-batch 4"},
                      {2, "--micro-batch 2 --grad-accum 2 --sequence-parallel"},
                      {4, "--micro-batch 4 --sequence-parallel --overlap chunk"},
                      {4, "--tp 2 --micro-batch 2 --overlap async"}};

Outcome train_grid(const Grid& grid, const std::string& arguments) {
    SCOPED_TRACE(fmt::format("{} ranks {}", grid.ranks, grid.arguments));
    return train(grid.ranks, chapter,
                 fmt::format("--seq 40 --lr 1e-3 --no-verify {} {}", grid.arguments, arguments));
}

// A checkpoint that is loaded and saved without a step has the same tensors, whichever rank held
// which slices (and, at tp 4, copies of key-value heads).
TEST(TensorParallelCheckpoint, ComesBackBitwise) {
    for (const char* dtype : {"fp32", "bf16"}) {
        TempDir dir;
        train("00_single_gpu",
              fmt::format("{} --dtype {} --seq 40 --micro-batch 2 --steps 2 --no-verify --save {}",
                          load("gqa_untied"), dtype, dir / "first"));
        for (const Grid& grid : grids) {
            train_grid(grid, fmt::format("{} --dtype {} --load {} --steps 0 --save {}",
                                         load("gqa_untied"), dtype, dir / "first", dir / "again"));
            expect_same_checkpoints(dir / "again", dir / "first");
        }
    }
}

TEST(TensorParallelCheckpoint, GoesOnAnywhere) {
    TempDir dir;
    const std::string data = fmt::format("--data {}/tokens.bin", reference("gqa_untied"));
    const Outcome straight = train_grid(grids[2], load("gqa_untied") + " --steps 4");
    train_grid(grids[2], fmt::format("{} --steps 2 --save {}", load("gqa_untied"), dir / "saved"));
    const std::vector<double> losses = straight.of("loss"), rest(losses.begin() + 2, losses.end());
    for (const Grid& grid : grids) {
        const Outcome run =
            train_grid(grid, fmt::format("--load {} {} --steps 2", dir / "saved", data));
        EXPECT_EQ(run.of("step"), (std::vector<double>{3, 4}));
        EXPECT_LE(largest_difference(run.of("loss"), rest), on_gpu ? 1e-5 : 1e-6);
    }
    const Outcome zero =
        train(2, "02_zero",
              fmt::format("--seq 40 --lr 1e-3 --no-verify --micro-batch 2 --load {} {} --steps 2",
                          dir / "saved", data));
    EXPECT_LE(largest_difference(zero.of("loss"), rest), on_gpu ? 1e-5 : 1e-6);
}

TEST(TensorParallelCheckpoint, ValidatesLikeOneDevice) {
    const std::string arguments =
        fmt::format("{0} --seq 40 --steps 2 --no-verify --val-data {1}/tokens.bin --val-every 1",
                    load("gqa_untied"), reference("gqa_untied"));
    const Outcome single = train("00_single_gpu", arguments + " --micro-batch 3"),
                  shared =
                      train(2, chapter,
                            arguments +
                                " --micro-batch 3 --sequence-parallel --overlap chunk --chunks 3");
    expect_as_predicted(shared);
    EXPECT_LE(largest_difference(shared.of("val_loss"), single.of("val_loss")), 1e-5);
}

// Without overlap the slow links take about a third of the step; the other half's computation takes
// longer than that.
TEST(TensorParallelSlowLinks, HalvesHideMostOfWhatTheySend) {
    if (on_gpu) GTEST_SKIP() << "a GPU's products are too short";
    const auto exposed = [](const std::string& overlap) {
        const Outcome run =
            train(2, chapter,
                  "--model small --layers 4 --seq 256 --micro-batch 4 --steps 3 --no-verify "
                  "--node-size 1 --inter-gbps 2 --overlap " +
                      overlap);
        return run.summary.at("communication").at("all-reduce").at("exposed_seconds").get<double>();
    };
    EXPECT_TRUE(in_one_of_six_tries([&] { return exposed("halves") < 0.4 * exposed("none"); }));
}

class TensorParallelBadInput : public testing::Test {
protected:
    void expect(int ranks, const std::string& arguments, const std::vector<std::string>& telling) {
        expect_ranks_refuse(ranks, chapter, "--steps 2 --seq 32 " + arguments, telling);
    }
    ProcessMark mark_;
};

TEST_F(TensorParallelBadInput, Options) {
    expect(2, "--tp 0", {"--tp", "0"});
    expect(2, "--overlap all", {"--overlap", "all", "async", "chunk"});
    expect(2, "--overlap chunk --chunks 1", {"--chunks", "1"});
    expect(2, "--overlap halves --micro-batch 3",
           {"--overlap halves", "3 sequences", "--micro-batch 4"});
    expect(2, "--overlap halves --micro-batch 2 --svg pictures", {"--svg", "--overlap halves"});
    expect(2, "--dropout 1", {"--dropout", "1"});
    expect(2, "--dropout nan", {"--dropout", "nan"});
    expect(2, "--same-seed off", {"--same-seed has no effect", "--dropout"});
    expect(2, "--keep-gathered on", {"--keep-gathered has no effect", "--sequence-parallel"});
    expect(2, "--partition-checkpoints", {"--partition-checkpoints", "--recompute full"});
    expect(2, "--partition-checkpoints --recompute full --sequence-parallel",
           {"--partition-checkpoints", "--sequence-parallel"});
    expect(2, "--demo row", {"--demo", "row"});
    expect(2, "--stage 1", {"--stage"});  // another chapter's
}

TEST_F(TensorParallelBadInput, OfACompare) {
    expect(2, "--compare", {"--compare", "--save", "excludes"});
    expect(2, "--demo linear", {"--demo", "--save", "excludes"});
    const auto refuses = [](const std::string& arguments, const std::vector<std::string>& telling) {
        SCOPED_TRACE(arguments);
        const Outcome outcome = run_ranks(2, chapter, "--compare " + arguments, 60);
        expect_one_error_line(outcome, telling);
        EXPECT_EQ(outcome.out, "");
    };
    refuses("--tp 1", {"--compare", "--tp 2"});
    refuses("--seq 33", {"--sequence-parallel", "33 tokens"});
    refuses("--device-memory 0.045",
            {"out of memory", "activations",
             "--micro-batch 7 would fit"});  // with sequence parallelism 8 would
    refuses("--grad-accum 1099511627776 --micro-batch 1 --seq 8",
            {"1099511627776 sequences", "--grad-accum"});
}

// These sizes would not fit anywhere, so they are refused before anything is allocated.
TEST_F(TensorParallelBadInput, WhatDoesNotSplit) {
    expect(3, "--tp 2", {"--tp 2", "3 ranks", "divide"});
    expect(2, "--tp 4", {"--tp 4", "2 ranks"});
    expect(3, "--model llama-3-405b", {"--tp 3", "128 attention heads", "divide"});
    expect(2, "--sequence-parallel --seq 33",
           {"--sequence-parallel", "33 tokens", "--tp 2", "--seq 32"});
    expect(2, "--partition-checkpoints --recompute full --micro-batch 3 --seq 31",
           {"--partition-checkpoints", "3 x 31 tokens"});
    expect(2, "--partition-checkpoints --recompute full --micro-batch 2 --seq 31 --overlap halves",
           {"--partition-checkpoints", "1 x 31 tokens"});
    expect(2, "--micro-batch 4000000", {"out of memory", "activations", "--sequence-parallel"});
    TempDir dir;
    const auto with = [&](const Json& changes) {
        put(dir / "config.json", config_json(changes));
        return "--model " + dir.path();
    };
    expect(3, with({{"num_attention_heads", 4}}), {"--tp 3", "4 attention heads"});
    expect(4, with({{"num_attention_heads", 2}}),
           {"--tp 4", "2 attention heads", "not split", "--tp 2 would work"});
    expect(4, with({{"num_attention_heads", 12}, {"num_key_value_heads", 3}, {"head_dim", 4}}),
           {"--tp 4", "3 key-value heads"});
    expect(4, with({{"intermediate_size", 90}}), {"--tp 4", "feed-forward size of 90"});
    expect(4, with({{"vocab_size", 3}}), {"vocabulary of 3"});
}

// The micro-batch that the report calls the largest fits; one more sequence does not.
TEST_F(TensorParallelBadInput, MicroBatchTooLarge) {
    for (const char* way : {"", " --sequence-parallel"}) {
        const std::string arguments = fmt::format("--no-verify --device-memory 0.2{}", way);
        const Outcome small = train(2, chapter, "--steps 1 --seq 32 --micro-batch 1 " + arguments);
        const auto largest = small.summary["fits"]["largest_micro_batch"].get<int>();
        EXPECT_GT(largest, 8);
        if (!on_gpu) {  // on GPUs workspace comes on top
            train(2, chapter,
                  fmt::format("--steps 1 --seq 32 --micro-batch {} {}", largest, arguments));
        }
        expect(2, fmt::format("--micro-batch {} {}", largest + 1, arguments),
               {"out of memory", fmt::format("--micro-batch {} would", largest)});
    }
    const Outcome parted = train(2, chapter,
                                 "--steps 1 --seq 31 --micro-batch 2 --recompute full "
                                 "--partition-checkpoints --no-verify --device-memory 0.2");
    EXPECT_EQ(parted.summary["fits"]["largest_micro_batch"].get<int>() % 2,
              0);  // two ranks cannot share an odd number of samples of 31 tokens
}

TEST_F(TensorParallelBadInput, Checkpoints) {
    TempDir dir;
    for (const char* file : {"config.json", "model.safetensors"})
        fs::copy(reference("gqa_untied") + "/" + file, dir.path());
    const std::string arguments =
        fmt::format("--load {} --data {}/tokens.bin", dir.path(), reference("gqa_untied"));
    expect(3, arguments, {"--tp 3", "4 attention heads"});
    Json config = Json::parse(slurp(dir / "config.json"));
    config["intermediate_size"] = 96;
    put(dir / "config.json", config.dump());
    expect(2, arguments, {"model.safetensors", "mlp.gate_proj.weight", "(88, 48)", "(96, 48)"});
    const std::string weights = slurp(dir / "model.safetensors");
    put(dir / "model.safetensors", weights.substr(0, weights.size() - 1));
    expect(2, arguments, {"model.safetensors"});
}

}  // namespace
}  // namespace ultrascale::test
