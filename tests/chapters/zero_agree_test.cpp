// The stages of 02_zero give the same results: on the CPU in fp32 bit by bit, with any number of
// ranks.
#include "compare_runs.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

void expect_the_same_saved(const std::string& dir, const std::string& other) {
    if (!on_gpu) expect_same_checkpoints(dir, other);
}
// Trains with 1 sequence per rank and micro-batch.
Outcome train_stage(int stage, int ranks, const std::string& arguments) {
    return train(ranks, "02_zero",
                 fmt::format("--stage {} --seq 40 --steps 3 --micro-batch 1 {}", stage, arguments));
}

// Expects that stages 0 to 3 give the same losses, norms and saved files with the same arguments.
void expect_stages_agree(int ranks, const std::string& arguments) {
    TempDir dir;
    const auto with = [&](int stage) {
        return train_stage(stage, ranks,
                           fmt::format("{} --save {}", arguments, dir / fmt::format("{}", stage)));
    };
    const Outcome stage0 = with(0);
    expect_as_predicted(stage0);
    for (int stage = 1; stage <= 3; ++stage) {
        SCOPED_TRACE(fmt::format("stage {}", stage));
        const Outcome run = with(stage);
        expect_as_predicted(run);
        expect_the_same(run, stage0);
        expect_the_same_saved(dir / fmt::format("{}", stage), dir / "0");
    }
}

class ZeroAgree : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ZeroAgree, testing::ValuesIn(rank_counts()),
                         testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(LongRanks, ZeroAgree, testing::ValuesIn(more_rank_counts()),
                         testing::PrintToStringParamName());

// AdamW's first step divides each element's gradient by itself. If 40 tokens leave an element near
// zero, its rounding error becomes a step of the learning rate's size, in another direction than
// one device's. On some processors, at the default rate, that was a third of what verification
// allows.
TEST_P(ZeroAgree, UntiedAndVerified) {
    expect_stages_agree(GetParam(), load("gqa_untied") + " --verify --lr 3e-4");
}

TEST_P(ZeroAgree, TiedClippedAndRecomputed) {
    expect_stages_agree(GetParam(),
                        load("tied_head_dim") + " --clip 0.1 --recompute full --no-verify");
}

TEST(ZeroStages, AgreeFromAFreshStart) {
    const SmallModel model;
    expect_stages_agree(3, fmt::format("--model {} --clip 0.1 --shuffle --verify", model.path()));
}

// Two groups of two ranks hold the same shards. Their sums have another order than all ranks', but
// the same one in all stages.
TEST(ZeroStages, AgreeInGroupsThatHoldCopies) {
    TempDir dir;
    const auto with = [&](int stage, const std::string& others) {
        const Outcome run =
            train_stage(stage, 4,
                        fmt::format("{} --verify --lr 3e-4 {} --save {}", load("gqa_untied"),
                                    others, dir / fmt::format("{}{}", stage, others.substr(0, 8))));
        expect_verified(run);
        return run;
    };
    const std::string groups = "--shard-size 2";
    const Outcome stage1 = with(1, groups), all = with(3, ""),
                  second = with(3, "--secondary-shard 2");
    expect_close(stage1, all);
    for (int stage : {2, 3}) {
        expect_the_same(with(stage, groups), stage1);
        expect_the_same_saved(dir / fmt::format("{}--shard-", stage), dir / "1--shard-");
    }
    expect_the_same(second, all);  // parameters that come from elsewhere
    expect_the_same_saved(dir / "3--second", dir / "3");
    for (const char* wrong : {"--shard-size 3", "--secondary-shard 3"})
        EXPECT_EQ(run_ranks(4, "02_zero", fmt::format("--stage 3 {}", wrong)).exit_code, 2);
}

TEST(ZeroStages, WhatIsNotSharedOutIsNotSharded) {
    expect_stages_agree(1, load("tied_head_dim") + " --verify");
}

// The model amplifies rounding: rank 0 trains twice more to measure how far correct runs drift
// apart, while the others sleep. The report of memory and communication is not affected.
TEST(LongZeroStages, MeasureHowFarCorrectRunsDrift) {
    const TempDir dir;
    put(dir / "config.json", config_json({{"num_hidden_layers", 1},
                                          {"hidden_size", 896},
                                          {"num_attention_heads", 7},
                                          {"num_key_value_heads", 1},
                                          {"head_dim", 128},
                                          {"initializer_range", 0.1}}));
    const Outcome run = train(
        2, "02_zero",
        fmt::format("--model {} --stage 2 --seq 24 --steps 6 --lr 2e-3 --verify", dir.path()));
    expect_verified(run);
    EXPECT_TRUE(run.summary.at("verify").contains("drift_weights")) << run.out;
}

// In bf16 the ranks' sums are also rounded once, in one order.
TEST(LongZeroStages, AgreeInBf16) {
    expect_stages_agree(2, load("llama3_bf16") + " --dtype bf16 --fp32-grads --verify");
    expect_stages_agree(3, load("llama3_bf16") + " --dtype bf16 --no-verify");
}

// The moment at which parameters are gathered changes no bit of them.
TEST(LongZeroStages, PrefetchAndGatherOverlapChangeNothing) {
    for (const char* name : {"tied_head_dim", "gqa_untied"}) {
        SCOPED_TRACE(name);
        const auto with = [&](int stage, const std::string& arguments) {
            return train_stage(stage, 3, fmt::format("{} --no-verify {}", load(name), arguments));
        };
        const Outcome stage0 = with(0, "");
        for (int prefetch : {0, 1, 2, 9}) {
            SCOPED_TRACE(fmt::format("--prefetch {}", prefetch));
            const Outcome run = with(3, fmt::format("--prefetch {}", prefetch));
            expect_as_predicted(run);
            expect_the_same(run, stage0);
        }
        for (int stage : {1, 2})
            for (const char* overlap : {"optimizer", "forward"}) {
                SCOPED_TRACE(fmt::format("stage {} --gather-overlap {}", stage, overlap));
                expect_the_same(with(stage, fmt::format("--gather-overlap {}", overlap)), stage0);
            }
    }
}

// 1_plain.h cuts the model in one piece, so the norm adds up its shards' squares in another order.
TEST(ZeroStages, PlainTrainsAsStage1Does) {
    const auto with = [&](const char* arguments) {
        const Outcome run = train_stage(
            1, 3, fmt::format("{} --grad-accum 2 {}", load("tied_head_dim"), arguments));
        expect_verified(run);
        return run;
    };
    const Outcome plain = with("--plain"), stage1 = with("");
    expect_as_predicted(plain);
    expect_close(plain, stage1);
    const auto calls = [&](const char* kind) {
        return plain.summary.at("communication").at(kind).at("calls").get<double>();
    };
    EXPECT_EQ(calls("reduce-scatter"), 1);
    EXPECT_EQ(calls("all-gather"), 1);
}

// 7_muon.h: parts that hold whole matrices. A run goes on with another number of ranks.
TEST(ZeroMuon, EqualsOneDeviceAndGoesOnAnywhere) {
    TempDir dir;
    const auto with = [&](int ranks, const std::string& arguments) {
        const Outcome run =
            train_stage(1, ranks, "--plain --optimizer muon --lr 3e-4 " + arguments);
        expect_verified(run);
        return run;
    };
    const std::string fresh = load("gqa_untied") + " --verify --grad-accum 2";
    with(2, fresh + " --save " + dir / "two"), with(3, fresh);
    const Outcome four = with(4, fresh + " --save " + dir / "four");
    const Json& muon = four.summary.at("muon");
    EXPECT_EQ(muon.at("matrices"), 14);
    EXPECT_GT(muon.at("cut_by_flat_shards"), 0);
    EXPECT_GE(muon.at("busiest_flops").get<double>(), muon.at("all_flops").get<double>() / 4);
    with(3, "--verify --load " + dir / "two");
    with(1, "--verify --load " + dir / "four");
    with(3, fresh + " --dtype bf16 --fp32-grads");
    expect_one_error_line(run_ranks(2, "02_zero", "--optimizer muon --stage 2"),
                          {"--optimizer muon", "--plain"});
    expect_one_error_line(
        run_ranks(2, "02_zero", "--plain --optimizer adamw --load " + dir / "two"),
        {"--optimizer"});
}

// Parameters that stay whole for a step have the same values. If the model is cut as one unit, its
// shards differ, and the norm adds up their squares in another order.
TEST(ZeroStages, GatherLessIfAsked) {
    const auto with = [&](const std::string& arguments) {
        const Outcome run = train_stage(
            3, 3, fmt::format("{} --grad-accum 3 {}", load("tied_head_dim"), arguments));
        expect_verified(run);
        return run;
    };
    const auto gathers = [](const Outcome& run) {
        return run.summary.at("communication").at("all-gather").at("calls").get<double>();
    };
    const Outcome plain = with(""), kept = with("--keep-gathered on --prefetch 2"),
                  one = with("--cut model");
    expect_the_same(kept, plain);
    expect_close(one, plain);
    const double units = gathers(kept);  // once each
    EXPECT_EQ(gathers(one), 3);
    EXPECT_EQ(gathers(plain), 3 * (2 * units - 1));  // a tied head: MEASURED.md
    EXPECT_TRUE(contains(kept.out, "gathered once a step"));
    EXPECT_TRUE(contains(one.out, "the model is one unit"));
}

// With two micro-batches stages 0 and 1 add up a rank's own gradients and sum over the ranks once;
// stages 2 and 3 sum over the ranks each time. --no-sync off makes stages 0 and 1 do so too.
TEST(ZeroStages, AgreeInPairsWithAccumulation) {
    for (const auto& [name, ranks] : {std::pair{"tied_head_dim", 2}, std::pair{"gqa_untied", 4}}) {
        SCOPED_TRACE(fmt::format("{} at {} ranks", name, ranks));
        const auto with = [&](int stage, const char* no_sync) {
            const Outcome run = train_stage(
                stage, ranks, fmt::format("{} --grad-accum 2 --clip 0.1 {}", load(name), no_sync));
            expect_verified(run);
            return run;
        };
        const Outcome once = with(0, "--no-sync on"), each_time = with(2, "");
        expect_the_same(with(1, ""), once);
        expect_the_same(with(3, ""), each_time);
        expect_close(each_time, once);
        for (int stage : {0, 1}) expect_the_same(with(stage, "--no-sync off"), each_time);
    }
}

// --offload optimizer: the update is the same, on the host's copies, and no states are on the
// device.
TEST(LongZeroOffload, ChangesWhereAndNothingElse) {
    for (const auto& [ranks, arguments] :
         {std::pair{2, load("tied_head_dim") + " --clip 0.1 --verify"},
          std::pair{3, load("gqa_untied") + " --no-verify --grad-accum 2"},
          std::pair{2, load("llama3_bf16") + " --dtype bf16 --fp32-grads --verify"},
          std::pair{1, load("llama3_bf16") + " --dtype bf16 --no-verify"}})
        for (int stage : {1, 2, 3}) {
            SCOPED_TRACE(fmt::format("stage {} on {} ranks: {}", stage, ranks, arguments));
            TempDir dir;
            const Outcome here =
                train_stage(stage, ranks, fmt::format("{} --save {}", arguments, dir / "here"));
            const Outcome there = train_stage(
                stage, ranks,
                fmt::format("{} --save {} --offload optimizer", arguments, dir / "there"));
            expect_as_predicted(there);
            expect_the_same(there, here);
            expect_the_same_saved(dir / "there", dir / "here");
            const Json &memory = there.summary.at("memory"), &host = memory.at("on the host");
            EXPECT_EQ(memory.at("optimizer").at("measured"), 0);
            EXPECT_EQ(host.at("measured"), host.at("predicted"));
            EXPECT_GT(host.at("measured").get<int64_t>(),
                      here.summary.at("memory").at("optimizer").at("measured").get<int64_t>());
            const int64_t weights =
                there.summary.at("offload").at("weights to the device_bytes").get<int64_t>();
            EXPECT_EQ(weights * (stage == 3 ? 1 : ranks), memory.at("parameters").at("measured"));
        }
}

// --offload activations: where a layer's input waits for its backward changes no bit. Of the inputs
// of three layers the device holds one fewer.
TEST(ZeroOffload, OfActivationsChangesNoBit) {
    const SmallModel three_layers;
    for (const std::string& model :
         {load("gqa_untied") + " --recompute full",
          fmt::format("--model {} --recompute full", three_layers.path()),
          fmt::format("--model {} --recompute full:2", three_layers.path())}) {
        const auto with = [&](const char* offload) {
            return train_stage(1, 2, fmt::format("{} --grad-accum 2 --offload {}", model, offload));
        };
        const Outcome here = with("optimizer"), there = with("both");
        expect_verified(there);
        expect_the_same(there, here);
        const Json &host = there.summary.at("memory").at("on the host"),
                   &optimizer_host = here.summary.at("memory").at("on the host");
        EXPECT_EQ(host.at("measured"), host.at("predicted"));
        const double inputs = there.summary.at("offload").at("inputs_bytes").get<double>();
        EXPECT_EQ(host.at("measured").get<double>() - optimizer_host.at("measured").get<double>(),
                  inputs / 2);  // the inputs of one of the two micro-batches
    }
}

TEST(ZeroOffload, StandsInTheComparison) {
    const Outcome run =
        run_ranks(3, "02_zero",
                  "--compare --offload optimizer --keep-gathered on --cut model --layers 2 --seq "
                  "16 --micro-batch 1 --steps 3");
    EXPECT_EQ(run.exit_code, 0) << run.err;
    int rows = 0;
    std::istringstream lines(run.out);
    for (std::string line; std::getline(lines, line);) rows += line.ends_with(" as predicted");
    EXPECT_EQ(rows, 10) << run.out;
    for (const char* row : {"  plain ", "  3 host", "  3 kept", "  3 one"})
        EXPECT_TRUE(contains(run.out, row)) << run.out;
}

TEST(ZeroStages, ComparisonObeysNoSync) {
    const std::string arguments =
        "--compare --layers 1 --seq 16 --micro-batch 1 --steps 3 --grad-accum 3 --no-sync ";
    for (const char* way : {"on", "off"}) {
        const Outcome run = run_ranks(2, "02_zero", arguments + way);
        EXPECT_EQ(run.exit_code, 0) << run.err;
        const std::string row = run.out.substr(run.out.find("\n  0 "), 100);
        EXPECT_TRUE(contains(row, way == std::string("on") ? " 1.00 " : " 3.00 "))
            << row;  // 2 (n-1)/n Psi each time
    }
}

// With --offload optimizer training works on a device that is too small for the states.
TEST(ZeroOffload, MakesRoom) {
    const std::string small =
        "--steps 2 --micro-batch 1 --seq 32 --peak-tflops 1 --stage 2 --no-verify --device-memory "
        "0.018";
    const Outcome without = run_ranks(2, "02_zero", small);
    EXPECT_EQ(without.exit_code, 2);
    EXPECT_TRUE(contains(without.err, "out of memory")) << without.err;
    EXPECT_EQ(run_ranks(2, "02_zero", small + " --offload optimizer").exit_code, 0);
}

// ZeRO-R's constant buffers: stages 2 and 3 gather no more memory after a hundred steps than after
// ten.
TEST(ZeroStages, BuffersStayConstant) {
    for (int stage : {2, 3}) {
        const Outcome run = train(
            2, "02_zero",
            fmt::format("--stage {} --layers 2 --seq 16 --micro-batch 1 --steps 100 --no-verify",
                        stage));
        const Json& constancy = run.summary.at("constancy");
        EXPECT_GT(constancy.at("buffers_early").get<double>(), 0) << stage;
        EXPECT_EQ(constancy.at("buffers_late"), constancy.at("buffers_early")) << stage;
    }
}

TEST(ZeroDemo, PrintsItsTables) {
    for (const auto& [arguments, texts] :
         {std::pair{"--demo memory --model llama-3-70b",
                    std::vector<const char*>{"1128.86   no", "17.64   62 GB left"}},
          std::pair{"--demo overlap --micro-batch 2 --seq 4096 --peak-tflops 1000",
                    std::vector<const char*>{"InfiniBand", " 2.40 ", " 1.20 "}}}) {
        const Outcome outcome = run("02_zero", arguments);
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        for (const char* text : texts)
            EXPECT_TRUE(contains(outcome.out, text)) << text << " in " << outcome.out;
    }
}

// The comparison detects small mistakes of a stage.
TEST(ZeroStages, AreNotEqualByChance) {
    const Outcome run = train_stage(3, 2, load("gqa_untied") + " --no-verify");
    for (const char* other : {"--lr 3.0001e-3", "--clip 0.99", "--seq 41"})
        EXPECT_NE(run.of("loss"),
                  train_stage(3, 2, fmt::format("{} --no-verify {}", load("gqa_untied"), other))
                      .of("loss"))
            << other;
}

// Sending numbers of 8 bits costs a little of the loss, and a quarter of fp32's bytes.
TEST(ZeroNarrow, LossStaysClose) {
    const std::string arguments =
        "--stage 3 --layers 2 --seq 32 --steps 20 --lr 2e-3 --verify --micro-batch 4";
    const Outcome plain = train(2, "02_zero", arguments),
                  narrow =
                      train(2, "02_zero", arguments + " --gather-dtype fp8 --reduce-dtype fp8");
    EXPECT_FALSE(contains(narrow.out, "MISMATCH")) << narrow.out;  // a prediction that is not met
    EXPECT_LE(narrow.summary.at("verify").at("gradient").get<double>(), 0.15);
    EXPECT_GT(largest_difference(narrow.of("loss"), plain.of("loss")), 0);
    EXPECT_LE(std::abs(narrow.of("loss").back() / plain.of("loss").back() - 1), 0.01);
}

}  // namespace
}  // namespace ultrascale::test
