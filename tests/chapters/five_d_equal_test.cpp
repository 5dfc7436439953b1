// 09_5d_parallel: any combination of techniques gives one device's results, and memory and
// communication are as predicted on every rank.
#include <random>

#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "09_5d_parallel";

void expect_equal(int ranks, const std::string& layout, bool tied = false) {
    SCOPED_TRACE(fmt::format("{} ranks: {}{}", ranks, layout, tied ? ", tied" : ""));
    const SplitModel model(tied, 8);
    const Outcome run = train(
        ranks, chapter,
        fmt::format("--model {} --seq 48 --steps 3 --lr 2e-3 --verify {}", model.path(), layout));
    EXPECT_EQ(run.summary.at("verify").at("result"), "ok");
    expect_as_predicted(run);
}

TEST(FiveD, EveryPairOfAxesEqualsOneDevice) {
    expect_equal(4, "--micro-batch 1 --tp 2 --zero 1 --grad-accum 2");
    expect_equal(4, "--micro-batch 2 --tp 2 --sequence-parallel --zero 3", true);
    expect_equal(4, "--micro-batch 1 --cp 2 --zero 2 --grad-accum 2");
    expect_equal(4, "--micro-batch 2 --cp 2 --variant all-gather --zero 3 --prefetch 2");
    expect_equal(4, "--micro-batch 1 --pp 2 --zero 1 --grad-accum 4", true);
    expect_equal(4, "--micro-batch 1 --pp 2 --zero 3 --grad-accum 3 --schedule zb-h1");
    expect_equal(4, "--micro-batch 1 --tp 2 --cp 2 --sequence-parallel --tp-overlap chunk");
    expect_equal(4, "--micro-batch 2 --tp 4 --sequence-parallel --loss-chunk 40");
    expect_equal(4, "--micro-batch 2 --tp 2 --pp 2 --grad-accum 2 --recompute full", true);
    expect_equal(4, "--micro-batch 1 --cp 2 --pp 2 --grad-accum 4 --schedule zbv");
    expect_equal(6, "--micro-batch 1 --cp 3 --zero 2 --layout striped");
}

TEST(FiveD, EveryTripleOfAxesEqualsOneDevice) {
    expect_equal(8, "--micro-batch 1 --tp 2 --cp 2 --zero 3 --sequence-parallel --grad-accum 2");
    expect_equal(8, "--micro-batch 1 --tp 2 --pp 2 --zero 1 --grad-accum 4 --schedule interleaved",
                 true);
    expect_equal(8, "--micro-batch 2 --cp 2 --pp 2 --zero 2 --grad-accum 4 --schedule v-half");
    expect_equal(8, "--micro-batch 1 --tp 2 --cp 2 --pp 2 --grad-accum 4 --sequence-parallel");
    expect_equal(8, "--micro-batch 1 --tp 4 --cp 2 --zero 1 --offload optimizer");
}

TEST(FiveD, TheOrderOfAxesChangesNothing) {
    const std::string layout = "--micro-batch 1 --tp 2 --pp 2 --zero 1 --grad-accum 2 --order ";
    expect_equal(8, layout + "pp,dp,ep,cp,tp");
    expect_equal(8, layout + "dp,tp,pp,cp,ep");
}

// Experts beside everything else: nano-moe with four layers.
void expect_experts_equal(int ranks, const std::string& layout) {
    SCOPED_TRACE(fmt::format("{} ranks with experts: {}", ranks, layout));
    const Outcome run =
        train(ranks, chapter,
              fmt::format("--model nano-moe --layers 4 --seq 48 --steps 3 --verify {}", layout));
    EXPECT_EQ(run.summary.at("verify").at("result"), "ok");
    expect_as_predicted(run);
}

TEST(FiveD, ExpertsBesideEveryAxisEqualOneDevice) {
    expect_experts_equal(4, "--micro-batch 2 --ep 2 --zero 3 --grad-accum 2 --z-coef 0.001");
    expect_experts_equal(4, "--micro-batch 1 --ep 2 --cp 2 --aux switch");
    expect_experts_equal(4, "--micro-batch 2 --ep 2 --tp 2 --sequence-parallel --dispatch rank");
    expect_experts_equal(4, "--micro-batch 1 --ep 2 --pp 2 --grad-accum 4 --schedule zb-h1");
    expect_experts_equal(8, "--micro-batch 1 --ep 2 --pp 2 --cp 2 --grad-accum 2 --zero 1");
    expect_experts_equal(8, "--micro-batch 1 --ep 2 --tp 2 --cp 2 --sequence-parallel --zero 2");
    expect_experts_equal(8,
                         "--micro-batch 1 --ep 2 --tp 2 --pp 2 --sequence-parallel "
                         "--grad-accum 4 --schedule zbv --recompute full");
}

// The options of 03 to 06 do inside the composition what they do there.
TEST(FiveD, TheChaptersOptionsEqualOneDevice) {
    expect_equal(4, "--micro-batch 1 --cp 2 --pp 2 --tails on --grad-accum 2 --schedule zb-h1");
    expect_equal(8,
                 "--micro-batch 1 --tp 2 --cp 2 --pp 2 --grad-accum 2 --recompute full "
                 "--partition-checkpoints --ring-backward kept");
    expect_equal(4,
                 "--micro-batch 2 --tp 4 --sequence-parallel --tp-keep-gathered on --tp-overlap "
                 "chunk --tp-chunks 4");
    expect_experts_equal(4,
                         "--micro-batch 1 --ep 2 --pp 2 --grad-accum 2 --capacity-factor 1 --drop "
                         "score --balance bias");
    expect_experts_equal(4,
                         "--micro-batch 1 --ep 2 --cp 2 --ep-overlap chunks --shared 1 --top-k 3 "
                         "--router sigmoid --first-dense 1");
    expect_experts_equal(4,
                         "--micro-batch 1 --ep 2 --zero 2 --grad-accum 2 --aux hf --aux-over "
                         "global");
}

// Products in fp8 inside the composition; the reference rounds in the same way.
TEST(FiveD, EightBitProductsEqualOneDevice) {
    for (const char* layout : {"--recipe tensor --zero 3 --grad-accum 2 --micro-batch 2",
                               "--recipe row --pp 2 --cp 2 --grad-accum 2 --micro-batch 1"}) {
        SCOPED_TRACE(layout);
        const Outcome run =
            train(4, chapter, fmt::format("--layers 4 --steps 3 --seq 64 --verify {}", layout));
        EXPECT_EQ(run.summary.at("verify").at("result"), "ok");
        expect_as_predicted(run);
    }
    // Ranks of tp measure scales of their own parts, which rounds otherwise.
    const Outcome parts = train(2, chapter, "--recipe tensor --tp 2 --layers 4 --steps 3 --verify");
    EXPECT_LE(parts.summary.at("verify").at("gradient").get<double>(), 0.1);
    expect_as_predicted(parts);
}

// ZeRO-3's gathers and sums in 8 bits, as 02 has them: the first step is as close as the format.
TEST(FiveD, ShardsTravelInEightBits) {
    for (const char* layout : {"--tp 2 --sequence-parallel --grad-accum 2",
                               "--pp 2 --grad-accum 4 --schedule zb-h1 --prefetch 2"}) {
        SCOPED_TRACE(layout);
        const Outcome run =
            train(4, chapter,
                  fmt::format("--zero 3 --gather-dtype fp8 --reduce-dtype fp8 --layers 4 --steps 3 "
                              "--seq 48 --micro-batch 1 --verify {}",
                              layout));
        EXPECT_LE(run.summary.at("verify").at("gradient").get<double>(), 0.15);
        EXPECT_LE(run.summary.at("verify").at("loss_step_1").get<double>(), 3e-3);
        EXPECT_FALSE(contains(run.out, "MISMATCH")) << run.out;  // of a prediction
    }
}

TEST(FiveD, WhatCannotBeCombinedIsRefused) {
    const auto expect_refused = [](int ranks, const std::string& arguments,
                                   const std::string& because) {
        SCOPED_TRACE(arguments);
        const Outcome run = run_ranks(ranks, chapter, "--steps 1 --no-verify " + arguments);
        EXPECT_EQ(run.exit_code, 2);
        EXPECT_TRUE(contains(run.err, because)) << run.err;
        EXPECT_EQ(std::ranges::count(run.err, '\n'), 1) << run.err;
    };
    expect_refused(2, "--tp 3", "do not make 2 ranks");
    expect_refused(2, "--ep 2", "no experts to share");
    expect_refused(2, "--model nano-moe --tp 2", "--sequence-parallel each routes");
    expect_refused(2, "--model nano-moe --pp 2 --grad-accum 2 --aux hf", "all layers together");
    expect_refused(2, "--model nano-moe --pp 2 --grad-accum 4 --schedule dualpipe", "twice");
    expect_refused(2, "--model nano-moe --cp 2 --aux-over global", "which is not predicted");
    expect_refused(2, "--model nano-moe --pp 2 --grad-accum 2 --aux-over global",
                   "a pipeline does not run");
    expect_refused(4,
                   "--model nano-moe --tp 2 --sequence-parallel --ep 2 --node-size 2 "
                   "--inter-gbps 5 --max-nodes 1",
                   "must be neighbours");
    expect_refused(2, "--model nano-moe --ep 2 --cp 1 --tails on", "--tails has no effect");
    expect_refused(2, "--zero 2 --gather-dtype fp8", "it is for stage 3");
    expect_refused(2, "--zero 3 --dtype bf16 --reduce-dtype bf16", "gradients are bf16 already");
    expect_refused(2, "--top-k 2", "this model has no experts");
    expect_refused(2, "--tp 2 --partition-checkpoints", "needs --recompute full");
    expect_refused(2, "--pp 2 --grad-accum 2 --schedule optimal", "05_pipeline measures");
    expect_refused(2, "--order tp,pp", "each of tp, cp, ep, dp, pp once");
    expect_refused(2, "--cp 2 --attention naive", "--attention naive");
    expect_refused(2, "--pp 2 --grad-accum 2 --sample 10", "--sample");
    expect_refused(2, "--tp 2 --dropout 0.1", "--dropout");
    expect_refused(2, "--recipe deepseek", "formats that shards do not have");
    expect_refused(2, "--recipe tensor --model nano-moe", "products of experts");
    expect_refused(2, "--recipe row --pp 2 --grad-accum 2 --schedule zb-h1",
                   "takes backward apart");
}

TEST(FiveD, ComparesTechniquesOnOneBatch) {
    TempDir dir;
    const Outcome run = run_ranks(
        2, chapter,
        fmt::format("--compare --model nano-moe --layers 2 --seq 32 --micro-batch 1 --grad-accum 2 "
                    "--steps 3 --json {0}/o --svg {0}",
                    dir.path()));
    EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
    EXPECT_TRUE(contains(run.out, "memory and communication of each way: as predicted"));
    EXPECT_TRUE(contains(run.out, "experts, ep 2"));
    EXPECT_TRUE(contains(slurp(dir / "techniques.svg"), "ZeRO-3"));
}

// Layouts drawn at random, of which some are refused; at least half must run.
TEST(LongFiveD, RandomLayoutsEqualOneDevice) {
    std::mt19937 random(20261125);
    const auto one_of = [&](const std::vector<std::string>& words) {
        return words[random() % words.size()];
    };
    const SplitModel model(false, 8), tied(true, 8);
    int ran = 0;
    constexpr int layouts = 100;
    for (int i = 0; i < layouts; ++i) {
        const int ranks = std::stoi(one_of({"2", "4", "6", "8", "8"}));
        const bool has_experts = random() % 3 == 0;
        std::map<std::string, int> size{{"tp", 1}, {"cp", 1}, {"pp", 1}, {"dp", 1}, {"ep", 1}};
        for (int left = ranks, factor = 2; left > 1;)
            if (left % factor == 0)
                size[one_of({"tp", "cp", "pp", "dp", has_experts ? "ep" : "dp"})] *= factor,
                    left /= factor;
            else
                ++factor;
        std::string arguments = fmt::format(
            "--model {} --seq 48 --steps 3 --lr 2e-3 --verify --micro-batch {} --tp {} --cp {} "
            "--pp {} --ep {} --grad-accum {}",
            has_experts         ? "nano-moe --layers 4"
            : random() % 3 == 0 ? tied.path()
                                : model.path(),
            one_of({"1", "2"}), size["tp"], size["cp"], size["pp"], size["ep"],
            size["pp"] > 1 ? std::to_string(size["pp"] * (1 + random() % 2))
                           : one_of({"1", "2", "3"}));
        const std::string zero = one_of({"0", "1", "2", "3"});
        arguments += " --zero " + zero;
        if (zero == "0") arguments += " --bucket-mb " + one_of({"0.01", "25"});
        if (zero == "3") arguments += " --prefetch " + one_of({"0", "1", "3"});
        if (zero != "0" && random() % 5 == 0) arguments += " --offload optimizer";
        if (size["tp"] > 1) arguments += " --tp-overlap " + one_of({"none", "async", "chunk"});
        if (size["tp"] > 1 && (has_experts || random() % 2 == 0))
            arguments +=
                one_of({" --sequence-parallel", " --sequence-parallel --tp-keep-gathered on"});
        if (size["cp"] > 1)
            arguments +=
                one_of({"", " --variant all-gather", " --variant ulysses", " --layout striped",
                        " --layout contiguous", " --tails on", " --ring-backward again",
                        " --ring-backward kept", " --variant usp --ulysses 2"});
        if (has_experts)
            arguments += one_of({"", "", " --dispatch rank", " --aux switch", " --aux sequence",
                                 " --balance bias", " --capacity-factor 1", " --ep-overlap chunks",
                                 " --shared 1 --ep-overlap shared", " --aux-over global",
                                 " --top-k 3 --router sigmoid", " --skew 0.3"});
        if (size["pp"] > 1)
            arguments += " --schedule " +
                         one_of({"naive", "afab", "1f1b", "interleaved", "breadth-first", "zb-h1",
                                 "zb-h2", "zbv", "v-half", "dualpipe", "dualpipev"});
        if (random() % 4 == 0) arguments += " --recompute full";
        if (random() % 4 == 0) arguments += " --loss-chunk 40";
        if (random() % 4 == 0)
            arguments += " --order " + one_of({"pp,dp,ep,cp,tp", "cp,pp,tp,dp,ep"});
        SCOPED_TRACE(fmt::format("{} ranks: {}", ranks, arguments));
        const Outcome run = run_ranks(ranks, chapter, arguments);
        if (run.exit_code == 2) {  // refused, in one line
            EXPECT_TRUE(run.err.starts_with("error: ")) << run.err;
            continue;
        }
        EXPECT_EQ(run.exit_code, 0) << run.out << run.err;
        ++ran;
    }
    EXPECT_GE(ran, layouts / 2);
}

}  // namespace
}  // namespace ultrascale::test
