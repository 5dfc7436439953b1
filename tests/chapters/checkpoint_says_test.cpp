// A checkpoint determines the training: the balancing loss that its config.json or its training
// state names, a head of its own, and options that a resumed run takes over without being told.
// Fields that are not understood are named.
#include <cstring>

#include "compare_runs.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

const char* const experts = "06_expert_parallel";

// A copy of a reference with changed fields in its config.json (null removes a field).
class Changed {
public:
    Changed(const std::string& reference_name, const Json& changes) {
        for (const auto& file : fs::directory_iterator(reference(reference_name)))
            fs::copy(file, dir_.path());
        Json config = Json::parse(slurp(dir_ / "config.json"));
        config.update(changes);
        put(dir_ / "config.json", config.dump());
    }
    std::string load() const { return fmt::format("--load {0} --data {0}/tokens.bin ", path()); }
    const std::string& path() const { return dir_.path(); }

private:
    TempDir dir_;
};

// A model that is published with a balancing loss is trained with it, and gives transformers'
// numbers. Its coefficient survives a save without a step.
TEST(CheckpointSays, TheLossOfBalance) {
    for (const std::string name : {"mixtral", "qwen3_moe"}) {
        const Changed model(name, {{"output_router_logits", true}, {"router_aux_loss_coef", 0.02}});
        const Json expected =
            Json::parse(slurp(reference(name) + "/expected.json")).at("aux").at("float64");
        const std::string batch = "--seq 64 --micro-batch 8 --no-verify ";
        TempDir dir;
        train(experts, model.load() + batch + "--steps 0 --save " + (dir / "saved"));
        for (const char* chapter : {experts, "09_5d_parallel"}) {
            SCOPED_TRACE(chapter);
            const Outcome run =
                train(chapter, fmt::format("--load {} --data {}/tokens.bin {} --steps 2",
                                           chapter == experts ? model.path() : dir / "saved",
                                           model.path(), batch));
            for (const size_t step : {0, 1}) {
                EXPECT_NEAR(run.of("loss")[step], expected.at("loss")[step].get<double>(), 5e-6);
                EXPECT_NEAR(
                    run.of("grad_norm")[step] / expected.at("grad_norm")[step].get<double>(), 1,
                    1e-4);
            }
        }
    }
}

// A resumed run takes over every option that changes its numbers, without being told, and gives the
// same bits. So does a run of another chapter, which has other defaults.
TEST(CheckpointSays, WhatTheRunComputes) {
    struct Case {
        int ranks;
        const char *chapter, *arguments, *rest;
    };
    for (const Case& c :
         {Case{0, "00_single_gpu",
               "--micro-batch 2 --grad-accum 2 --shuffle --seed 7 --document-token 32 --lr 3e-3 "
               "--warmup 3 --lr-schedule cosine --lr-steps 9 --weight-decay 0.3 --clip 0.5 "
               "--dropout 0.1 --dtype bf16 --fp32-grads --loss-chunk 16",
               "00_single_gpu"},
          {0, experts,
           "--model nano-moe --micro-batch 2 --grad-accum 2 --aux switch --aux-coef 0.05 "
           "--aux-over global --z-coef 0.01 --ignore-token 32 --top-k 1",
           experts},
          {2, experts, "--model nano-moe --micro-batch 2", "09_5d_parallel"},
          {0, experts, "--model nano-moe --micro-batch 2 --balance bias --gamma 0.1 --skew 0.1",
           experts},
          {0, "08_mixed_precision",
           "--micro-batch 2 --recipe fp16 --loss-scale-start 1024 --loss-scale-window 2",
           "08_mixed_precision"}}) {
        SCOPED_TRACE(c.arguments);
        TempDir dir;
        const std::string common = "--no-verify ",
                          fresh = fmt::format("{} --layers 2 --seq 16 {}", common, c.arguments);
        const Outcome all = train(c.ranks, c.chapter, fresh + " --steps 4");
        train(c.ranks, c.chapter, fmt::format("{} --steps 2 --save {}", fresh, dir / "saved"));
        const std::string resumed = fmt::format("{} --steps 2 --load {}", common, dir / "saved");
        const Outcome rest = train(c.ranks, c.rest, resumed);
        EXPECT_TRUE(contains(rest.out, "note: as the run in")) << rest.out;
        const bool same_sums = c.chapter == std::string(c.rest) && !on_gpu;
        for (const char* what : {"loss", "grad_norm"}) {
            const std::vector<double> values = all.of(what);
            EXPECT_LE(largest_difference(rest.of(what), {values.begin() + 2, values.end()}),
                      same_sums ? 0 : 1e-5)
                << what;
        }
    }
}

TEST(CheckpointSays, WhatContradictsIsRefused) {
    TempDir dir;
    const std::string saved = dir / "saved", load = "--load " + saved + " ";
    train(experts,
          "--model nano-moe --layers 1 --seq 16 --micro-batch 2 --no-verify --steps 1 "
          "--document-token 32 --lr 2e-3 --save " +
              saved);
    for (const char* option : {"--aux megatron", "--aux-coef 0.5", "--z-coef 0.1",
                               "--document-token 10", "--ignore-token 10", "--shuffle",
                               "--balance bias", "--top-k 1", "--renormalise off", "--groups 2"})
        expect_ranks_refuse(0, experts, load + option, {option, saved, "goes on with"});
    const Outcome other = train(experts, load + "--steps 1 --lr 1e-3 --no-verify");
    EXPECT_TRUE(contains(other.out, "note: --lr 0.001 from here on; so far with --lr 0.002\n"))
        << other.out;
    // These options change nothing.
    for (const char* option : {"--aux switch", "--aux-over global"})
        expect_ranks_refuse(0, experts, fmt::format("--model nano-moe --aux-coef 0 {}", option),
                            {"has no effect", "--aux-coef"});
}

// This checkpoint was written before training states recorded options, after two of four steps with
// the balancing loss 0.1 that its config.json names.
TEST(CheckpointSays, ASaveOfAnEarlierVersion) {
    const Outcome rest =
        train(experts, fmt::format("--load {} --micro-batch 4 --steps 2 --no-verify",
                                   fs::absolute(reference("saved_before_options")).string()));
    EXPECT_LE(largest_difference(rest.of("step"), {3, 4}), 0);
    EXPECT_LE(largest_difference(rest.of("loss"), {5.553631857, 5.554025806}), 1e-5);
    EXPECT_LE(largest_difference(rest.of("grad_norm"), {0.926479281, 0.977166689}), 1e-5);
}

// Options may turn a Mixtral into another kind of model, whose weights have other names.
TEST(CheckpointSays, AMixtralWithAnotherRouter) {
    std::vector<double> losses;
    for (const char* option : {"", "--renormalise off", "--balance bias", "--scaling 2",
                               "--router sigmoid", "--groups 2"}) {
        SCOPED_TRACE(option);
        TempDir dir;
        const Outcome run = train(
            experts, fmt::format("{} --seq 16 --micro-batch 2 --steps 1 --verify --save {} {}",
                                 load("mixtral"), dir / "saved", option));
        expect_verified(run);
        losses.push_back(run.of("loss")[0]);
        EXPECT_EQ(Json::parse(slurp(dir / "saved/config.json")).at("model_type"),
                  *option ? "deepseek" : "mixtral");
        train(experts, fmt::format("--load {} --data {}/tokens.bin --steps 1", dir / "saved",
                                   reference("mixtral")));
    }
    EXPECT_EQ(losses[2], losses[0]);  // a bias begins at 0
    for (const size_t i : {1, 3, 4, 5}) EXPECT_NE(losses[i], losses[0]);
}

// config.json says that the head is tied, but the file holds other numbers for it. Like
// transformers 5 we do not tie it, and the result equals that of a checkpoint whose config.json
// does not say so.
TEST(CheckpointSays, AHeadOfItsOwn) {
    const Changed untied("gqa_untied", Json::object()),
        says_tied("gqa_untied", {{"tie_word_embeddings", true}});
    const std::string batch = "--seq 32 --micro-batch 2 --steps 2 --verify ";
    const Outcome right = train("00_single_gpu", untied.load() + batch);
    TempDir dir;
    const Outcome saving =
        train("00_single_gpu", says_tied.load() + batch + "--save " + (dir / "saved"));
    expect_same_bits(saving, right);
    EXPECT_TRUE(contains(saving.out, "config.json ties")) << saving.out;
    EXPECT_EQ(Json::parse(slurp(dir / "saved/config.json")).at("tie_word_embeddings"), false);
    expect_close(train(2, "02_zero", says_tied.load() + batch + "--stage 3 --micro-batch 1"),
                 right);
    expect_close(train(2, "05_pipeline", says_tied.load() + batch), right);
}

TEST(CheckpointSays, WhatIsNotUnderstood) {
    const Changed model("gqa_untied", {{"logit_scale", 0.5}});
    const std::string batch = "--seq 32 --micro-batch 2 --steps 1 --no-verify ";
    for (const int ranks : {0, 2}) {
        const Outcome run = train(ranks, ranks ? "02_zero" : "00_single_gpu", model.load() + batch);
        EXPECT_TRUE(run.out.starts_with("note: " + model.path())) << run.out;
        EXPECT_TRUE(contains(run.out, "logit_scale"));
    }
    EXPECT_FALSE(contains(train("00_single_gpu", load("gqa_untied") + " " + batch).out, "note:"));
}

}  // namespace
}  // namespace ultrascale::test
