// 03_tensor_parallel: ranks that share a layer give one device's results, with memory and
// communication as predicted.
#include "compare_runs.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "03_tensor_parallel";

Outcome train_split(int ranks, const std::string& arguments, bool tied = false) {
    const SplitModel model(tied);
    return train(ranks, chapter,
                 fmt::format("--model {} --seq 40 --steps 3 --lr 2e-3 --micro-batch 2 {}",
                             model.path(), arguments));
}

double communicated(const Outcome& run, const char* kind, const char* what) {
    const Json all = run.summary.at("communication");
    return all.contains(kind) ? all.at(kind).at(what).get<double>() : 0;
}

class TensorParallel : public testing::TestWithParam<int> {};
std::vector<int> tensor_parallel_ranks() {
    if (!on_gpu) return {1, 4};
    return gpus() < 8 ? std::vector<int>{2, 4} : std::vector<int>{2, 4, 8};
}
INSTANTIATE_TEST_SUITE_P(Ranks, TensorParallel, testing::ValuesIn(tensor_parallel_ranks()),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(LongRanks, TensorParallel,
                         testing::ValuesIn(on_gpu ? std::vector<int>{} : std::vector<int>{2, 8}),
                         testing::PrintToStringParamName());

TEST_P(TensorParallel, EveryWayEqualsOneDevice) {
    const int n = GetParam();
    const Outcome plain = train_split(n, "");
    expect_verified(plain);
    EXPECT_EQ(plain.summary.at("configuration").at("global_batch"), 2);
    for (const char* arguments :
         {"--sequence-parallel", "--overlap async", "--overlap chunk", "--overlap halves",
          "--sequence-parallel --overlap halves", "--sequence-parallel --overlap async",
          "--sequence-parallel --overlap chunk --keep-gathered on", "--recompute full",
          "--sequence-parallel --recompute full", "--recompute full:1 --partition-checkpoints",
          "--sequence-parallel --recompute full:1"}) {
        SCOPED_TRACE(arguments);
        const Outcome run = train_split(n, arguments);
        expect_verified(run);
        expect_close(run, plain);
        EXPECT_EQ(run.summary.at("copies").at("largest_difference"), 0);
    }
}

TEST_P(TensorParallel, TiedWithDropoutEqualsOneDevice) {
    const int n = GetParam();
    const Outcome plain = train_split(n, "--dropout 0.1 --clip 0.1", true);
    expect_verified(plain);
    for (const char* arguments :
         {"--sequence-parallel --overlap chunk --chunks 5", "--sequence-parallel --overlap halves",
          "--recompute full --partition-checkpoints --overlap async"}) {
        SCOPED_TRACE(arguments);
        const Outcome run =
            train_split(n, fmt::format("--dropout 0.1 --clip 0.1 {}", arguments), true);
        expect_verified(run);
        expect_close(run, plain);
    }
    EXPECT_NE(train_split(n, "--clip 0.1", true).of("loss"),
              plain.of("loss"));  // --clip has an effect
}

// 1_plain.h makes a layer's all-reduces itself; memory and bits are those of the general linears.
TEST(TensorParallelPlain, TrainsAsTheGeneralLinearsDo) {
    for (int n : {2, 4}) {
        if (on_gpu && gpus() < n) continue;
        const Outcome plain = train_split(n, "--plain"), general = train_split(n, "");
        expect_verified(plain);
        expect_the_same(plain, general);
        for (const char* kind : {"all-reduce", "all-gather"})
            EXPECT_EQ(communicated(plain, kind, "calls"), communicated(general, kind, "calls"));
        const auto activations = [](const Outcome& run) {
            return run.summary.at("memory").at("activations, peak").at("measured").get<double>();
        };
        EXPECT_EQ(activations(plain), activations(general));
    }
    for (const std::string other : {"--sequence-parallel", "--overlap async", "--compare",
                                    "--partition-checkpoints --recompute full"})
        expect_one_error_line(run_ranks(2, chapter, "--plain --steps 2 " + other, 60),
                              {"--plain", other.substr(0, other.find(' '))});
}

// Halves are micro-batches of half the size, whose gradients are added up in the same order.
TEST(TensorParallelHalves, GiveTheBitsOfTwiceAsManyMicroBatches) {
    const SplitModel model;
    const auto with = [&](const std::string& batch, const std::string& arguments) {
        return train(
            2, chapter,
            fmt::format("--model {} --seq 40 --steps 3 {} {}", model.path(), batch, arguments));
    };
    for (const std::string arguments :
         {"", "--sequence-parallel", "--sequence-parallel --keep-gathered on --dropout 0.1",
          "--recompute full --dropout 0.1", "--recompute full --partition-checkpoints",
          "--sequence-parallel --recompute full",
          "--sequence-parallel --recompute selective --attention naive", "--dtype bf16"}) {
        SCOPED_TRACE(arguments);
        const Outcome halves = with("--micro-batch 4 --grad-accum 2 --overlap halves", arguments),
                      apart = with("--micro-batch 2 --grad-accum 4 --no-verify", arguments);
        expect_verified(halves);
        expect_the_same(halves, apart);
        for (const char* kind : {"all-reduce", "all-gather", "reduce-scatter"})
            EXPECT_EQ(communicated(halves, kind, "calls"), communicated(apart, kind, "calls"));
    }
    // With a loss in chunks the halves take turns within the head, too.
    expect_verified(
        with("--micro-batch 2 --overlap halves", "--sequence-parallel --loss-chunk 16"));
}

// The predicted peak is exact even if shares are not exact in binary.
TEST(TensorParallelMemory, OfThirdsIsExact) {
    TempDir dir;
    put(dir / "config.json", config_json({{"hidden_size", 54},
                                          {"num_hidden_layers", 1},
                                          {"num_attention_heads", 3},
                                          {"num_key_value_heads", 1},
                                          {"head_dim", 18},
                                          {"intermediate_size", 87},
                                          {"vocab_size", 257},
                                          {"tie_word_embeddings", true}}));
    const std::string arguments =
        fmt::format("--model {} --seq 48 --micro-batch 1 --steps 1 --no-verify", dir.path());
    const Json peak = train(3, chapter, arguments + " --sequence-parallel --keep-gathered on")
                          .summary.at("memory")
                          .at("activations, peak");
    EXPECT_EQ(peak.at("predicted"), peak.at("measured"));
}

// The global batch and the dropout masks are the same on grids of other shapes.
TEST(TensorAndDataParallel, EqualsOneDevice) {
    const SplitModel model;
    const auto with = [&](int ranks, const std::string& arguments) {
        return train(ranks, chapter,
                     fmt::format("--model {} --seq 40 --steps 3 --lr 2e-3 --dropout 0.1 {}",
                                 model.path(), arguments));
    };
    const Outcome whole = with(1, "--micro-batch 8");
    expect_verified(whole);
    for (const char* grid :
         {"--tp 1 --micro-batch 2", "--tp 2 --micro-batch 4",
          "--tp 2 --micro-batch 2 --grad-accum 2 --sequence-parallel",
          "--tp 4 --micro-batch 4 --grad-accum 2 --sequence-parallel --overlap chunk"}) {
        SCOPED_TRACE(grid);
        const Outcome run = with(4, grid);
        expect_verified(run);
        expect_close(run, whole);
    }
    if (!on_gpu)
        expect_verified(with(8, "--tp 4 --micro-batch 1 --sequence-parallel --overlap async"));
}

TEST(LongTensorParallelPrecision, Bf16) {
    for (int n : tensor_parallel_ranks())
        for (const char* others : {"", "--fp32-grads --sequence-parallel --overlap chunk"})
            expect_verified(train_split(n, fmt::format("--dtype bf16 {}", others)));
}

TEST(TensorParallelData, EqualsChapter00OnHuggingFacesModel) {
    const std::string arguments = load("gqa_untied") + " --seq 48 --steps 3 --lr 2e-3 --no-verify";
    const Outcome single = train("00_single_gpu", arguments + " --micro-batch 4");
    expect_close(train(4, chapter, arguments + " --micro-batch 2 --tp 2 --sequence-parallel"),
                 single);
    expect_close(train(4, chapter, arguments + " --micro-batch 4"),
                 single);  // key-value heads copied
}

TEST(TensorParallelCosts, SequenceParallelismHoldsLessAndSendsTheSame) {
    const int n = on_gpu ? 2 : 4;
    const std::string arguments = "--layers 4 --micro-batch 2 --steps 3 --no-verify ";
    const Outcome plain = train(n, chapter, arguments),
                  shards = train(n, chapter, arguments + "--sequence-parallel"),
                  keeps = train(n, chapter, arguments + "--sequence-parallel --keep-gathered on");
    for (const Outcome* run : {&plain, &shards, &keeps}) expect_as_predicted(*run);
    const auto activations = [](const Outcome& run) {
        return run.summary.at("memory").at("activations, peak").at("measured").get<double>();
    };
    EXPECT_LT(activations(shards), activations(keeps));
    EXPECT_LT(activations(keeps), activations(plain));
    // A layer has 2 all-reduces in forward and 2 in backward; or as many all-gathers and
    // reduce-scatters, and gathers the inputs once more.
    const double tensor = 2 * 128 * 128 * 4;
    const auto layer = [&](const Outcome& run, const char* pass, const char* kind) {
        return run.summary.at(pass).at(kind).get<double>() / tensor;
    };
    for (const char* pass : {"layer_forward", "layer_backward"}) {
        EXPECT_EQ(layer(plain, pass, "all-reduce"), 2);
        EXPECT_EQ(layer(keeps, pass, "all-gather"), 2);
        EXPECT_EQ(layer(keeps, pass, "reduce-scatter"), 2);
        EXPECT_EQ(layer(shards, pass, "reduce-scatter"), 2);
    }
    EXPECT_EQ(layer(shards, "layer_backward", "all-gather"), 4);
    EXPECT_EQ(communicated(plain, "reduce-scatter", "calls"), 0);
}

TEST(TensorParallelCosts, PartitionedCheckpointsHoldLess) {
    const std::string arguments =
        "--layers 6 --micro-batch 2 --steps 3 --no-verify --recompute full ";
    const Outcome whole = train(2, chapter, arguments),
                  parts = train(2, chapter, arguments + "--partition-checkpoints");
    expect_as_predicted(parts);
    expect_the_same(parts, whole);  // equal to the bit: gathering changes no bits
    const auto activations = [](const Outcome& run) {
        return run.summary.at("memory").at("activations, peak").at("measured").get<int64_t>();
    };
    EXPECT_EQ(activations(whole) - activations(parts), (6 - 1) * 2 * 128 * 128 * 4 / 2);
}

// --same-seed off: copies of the residual stream diverge, and with them the weights. With sequence
// parallelism nothing is copied, and only the masks differ.
TEST(TensorParallelDropout, ASeedForEachRankGoesWrong) {
    const auto apart = [](const std::string& arguments) {
        const Outcome run = train_split(2, "--dropout 0.2 --verify --same-seed off " + arguments);
        EXPECT_EQ(run.summary.at("verify").at("result"), "not meant to be equal");
        EXPECT_GT(run.summary.at("verify").at("gradient").get<double>(), 1e-2);
        return run.summary.at("copies").at("largest_difference").get<double>();
    };
    EXPECT_GT(apart(""), 1e-4);
    EXPECT_EQ(apart("--sequence-parallel"), 0);
}

TEST(TensorParallelOutput, DemoCompareAndShapes) {
    for (int n : {1, 2, 3}) {
        const Outcome demo = run_ranks(n, chapter, "--demo linear");
        EXPECT_EQ(demo.exit_code, 0) << demo.err;
        EXPECT_TRUE(contains(demo.out, "column linear") && contains(demo.out, "row linear") &&
                    !contains(demo.out, "WRONG"))
            << demo.out;
    }
    const Outcome compare = run_ranks(
        4, chapter, "--tp 2 --compare --layers 2 --micro-batch 1 --steps 3 --overlap async");
    EXPECT_EQ(compare.exit_code, 0) << compare.out << compare.err;
    EXPECT_TRUE(contains(compare.out, "TP, plain") && contains(compare.out, "TP + SP") &&
                contains(compare.out, "as predicted") && !contains(compare.out, "NOT"))
        << compare.out;
    const Outcome run = train_split(2, "--sequence-parallel --no-verify --report full");
    for (const char* row :
         {"(40, 48)   1/2", "(80, 48)   full", "(80, 36)   full           1/2", "overlap ratio"})
        EXPECT_TRUE(contains(run.out, row)) << row << run.out;
    const Outcome halves =
        train_split(2, "--sequence-parallel --no-verify --report full --overlap halves");
    for (const char* row : {"(20, 48)   1/2", "(40, 48)   full", "(40, 36)   full           1/2"})
        EXPECT_TRUE(contains(halves.out, row)) << row << halves.out;
}

}  // namespace
}  // namespace ultrascale::test
