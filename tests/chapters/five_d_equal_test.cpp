// 09_5d_parallel: any combination of techniques gives one device's results, and memory and
// communication are as predicted on every rank.
#include <cstdlib>

#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "09_5d_parallel";

void expect_equal(int ranks, const std::string& layout, bool tied = false, int layers = 8) {
    SCOPED_TRACE(fmt::format("{} ranks: {}{}", ranks, layout, tied ? ", tied" : ""));
    const SplitModel model(tied, layers);
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
    expect_equal(4, "--micro-batch 1 --zero 3 --shard-size 2 --grad-accum 2");
    expect_equal(4, "--micro-batch 2 --cp 2 --variant all-gather --zero 3 --prefetch 2");
    expect_equal(4, "--micro-batch 1 --pp 2 --zero 1 --grad-accum 4", true);
    expect_equal(4, "--micro-batch 1 --pp 2 --zero 3 --grad-accum 3 --schedule zb-h1");
    expect_equal(4, "--micro-batch 1 --tp 2 --cp 2 --sequence-parallel --tp-overlap chunk");
    expect_equal(4, "--micro-batch 2 --tp 4 --sequence-parallel --loss-chunk 40");
    expect_equal(4, "--micro-batch 2 --tp 2 --pp 2 --grad-accum 2 --recompute full:1", true);
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
    expect_equal(8, "--micro-batch 1 --tp 2 --sequence-parallel --zero 3 --shard-size 2");
    expect_equal(8, "--micro-batch 1 --pp 2 --zero 2 --shard-size 2 --grad-accum 3");
}

// Where the peak is in a moment that is the highest in few layouts: in the backward of a norm, when
// all that linears need for their weights is still there; with weights that ZeRO-3 has gathered
// ahead, for a pass that a pipeline does not run next; and in a forward, whose attention has
// buffers beside the gradients that an earlier backward is still reducing.
TEST(FiveD, PeaksOfFewLayoutsAreAsPredicted) {
    for (const char* schedule : {"zb-h1", "zbv"})
        expect_equal(8, fmt::format("--micro-batch 1 --tp 4 --pp 2 --recompute full --grad-accum 4 "
                                    "--schedule {}",
                                    schedule));
    expect_equal(8, "--micro-batch 1 --pp 4 --schedule interleaved --zero 3 --grad-accum 4");

    const std::string cut = "--cp 2 --pp 2 --zero 3 ";
    expect_equal(4,
                 cut +
                     "--micro-batch 8 --grad-accum 2 --prefetch 3 --bidirectional on "
                     "--schedule zbv",
                 true, 4);
    expect_equal(4,
                 cut +
                     "--micro-batch 8 --grad-accum 4 --prefetch 2 --variant ulysses "
                     "--schedule dualpipev",
                 true);
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
    expect_experts_equal(4, "--micro-batch 1 --pp 2 --grad-accum 8 --schedule dualpipe");
    expect_experts_equal(8, "--micro-batch 1 --ep 2 --pp 2 --cp 2 --grad-accum 2 --zero 1");
    expect_experts_equal(8, "--micro-batch 1 --ep 2 --tp 2 --cp 2 --sequence-parallel --zero 2");
    expect_experts_equal(8,
                         "--micro-batch 1 --ep 2 --tp 2 --pp 2 --sequence-parallel "
                         "--grad-accum 4 --schedule zbv --recompute full");
}

// A micro-batch computes while another one's rows travel: without a pipeline, in 1F1B's order, and
// in DualPipe's, in which stages may differ in their layers.
TEST(FiveD, MicroBatchesBesideEachOtherEqualOneDevice) {
    const std::string beside = "--ep 2 --ep-overlap batches --micro-batch 1 --grad-accum ";
    expect_experts_equal(2, beside + "3 --zero 1 --shared 1");
    expect_experts_equal(4, beside + "2 --zero 2 --cp 2 --dispatch rank");
    expect_experts_equal(4, beside + "3 --tp 2 --sequence-parallel");
    expect_experts_equal(4, beside + "5 --pp 2 --zero 1");
    expect_experts_equal(4, beside + "6 --pp 2 --schedule dualpipev --dispatch rank");
    expect_experts_equal(4, beside + "4 --pp 2 --schedule dualpipe --balance bias");
    expect_experts_equal(8, beside + "8 --pp 4 --first-dense 1");
}

// A rank of a pipeline may have dense layers only: then it routes no rows.
TEST(FiveD, StagesWithoutExpertsEqualOneDevice) {
    const std::string dense = "--micro-batch 1 --grad-accum 4 --first-dense 2 ";
    expect_experts_equal(2, dense + "--pp 2 --zero 3 --aux sequence");
    expect_experts_equal(2, dense + "--pp 2 --split 1,3 --zero 1 --recompute full");
    expect_experts_equal(2, dense + "--pp 2 --schedule interleaved --zero 2 --z-coef 0.001");
    expect_experts_equal(4, dense + "--pp 2 --ep 2 --schedule zbv --balance bias");
}

// The data decide what travels round the ring, micro-batch by micro-batch.
TEST(FiveD, DocumentsWhoseSequencesAreCutEqualOneDevice) {
    const std::string documents = "--document-token 32 --micro-batch ";  // a word each
    expect_equal(2, documents + "2 --cp 2 --zero 2 --grad-accum 3");
    expect_equal(4, documents + "1 --cp 2 --pp 2 --zero 3 --grad-accum 4 --schedule zbv");
    expect_equal(4, documents + "2 --cp 2 --tp 2 --sequence-parallel --layout striped");
    expect_equal(8, documents + "1 --cp 4 --pp 2 --variant usp --ulysses 2 --grad-accum 2");
    expect_experts_equal(
        4, documents + "1 --cp 2 --ep 2 --recompute full:1 --bidirectional on --zero 1");
}

// The options of 03 to 06 do inside the composition what they do there.
TEST(FiveD, TheChaptersOptionsEqualOneDevice) {
    expect_equal(
        4, "--micro-batch 1 --cp 2 --pp 2 --bidirectional on --grad-accum 2 --schedule zb-h1");
    expect_equal(8,
                 "--micro-batch 1 --tp 2 --cp 2 --pp 2 --grad-accum 2 --recompute full "
                 "--partition-checkpoints --ring-backward kept");
    expect_equal(4,
                 "--micro-batch 2 --tp 4 --sequence-parallel --tp-keep-gathered on --tp-overlap "
                 "chunk --tp-chunks 4");
    expect_equal(8, "--micro-batch 1 --tp 2 --cp 4 --merge bf16 --sequence-parallel --zero 3");
    expect_experts_equal(4, "--micro-batch 2 --ep 2 --cp 2 --merge bf16");
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
    expect_refused(2, "--tp 65536 --pp 65536", "do not make 2 ranks");  // 2^32 is 0 in an int
    expect_refused(2, "--ep 2", "no experts to share");
    expect_refused(6, "--cp 3 --tp 2 --sequence-parallel --seq 64", "--seq 60 would work");
    expect_refused(2, "--model nano-moe --tp 2", "--sequence-parallel each routes");
    expect_refused(2, "--model nano-moe --pp 2 --grad-accum 2 --aux hf", "all layers together");
    const std::string beside = "--model nano-moe --ep 2 --grad-accum 2 --ep-overlap batches ";
    expect_refused(2, beside + "--zero 3", "with --zero 0, 1 or 2 they stay");
    expect_refused(4, beside + "--pp 2 --schedule zb-h1", "1f1b-overlap, dualpipe and dualpipev");
    expect_refused(2, "--model nano-moe --cp 2 --aux-over global", "which is not predicted");
    expect_refused(2, "--model nano-moe --pp 2 --grad-accum 2 --aux-over global",
                   "a pipeline does not run");
    expect_refused(4,
                   "--model nano-moe --tp 2 --sequence-parallel --ep 2 --node-size 2 "
                   "--inter-gbps 5 --max-nodes 1",
                   "must be neighbours");
    expect_refused(2, "--model nano-moe --ep 2 --cp 1 --bidirectional on",
                   "--bidirectional has no effect");
    expect_refused(2, "--zero 2 --gather-dtype fp8", "it is for stage 3");
    expect_refused(2, "--zero 3 --dtype bf16 --reduce-dtype bf16", "gradients are bf16 already");
    expect_refused(2, "--top-k 2", "this model has no experts");
    expect_refused(2, "--tp 2 --partition-checkpoints", "needs --recompute full");
    expect_refused(2, "--pp 2 --grad-accum 2 --schedule optimal", "05_pipeline measures");
    expect_refused(2, "--order tp,pp", "each of tp, cp, ep, dp, pp once");
    expect_refused(2, "--cp 2 --attention naive", "--attention naive");
    expect_refused(2, "--pp 2 --grad-accum 2 --sample 10", "--sample");
    expect_refused(2, "--tp 2 --dropout 0.1", "--dropout");
    expect_refused(2, "--cp 2 --document-token 32 --ring-backward kept", "the ring starts anew");
    expect_refused(2, "--pp 2 --grad-accum 1000000000000", "sequences: at most 10^7");
    expect_refused(2, "--recipe deepseek", "formats that shards do not have");
    expect_refused(2, "--recipe plain-fp8", "only 08_mixed_precision has it");
    expect_refused(2, "--tp 3 --recipe fp9", "there are fp32, bf16, bf16-fp32, tensor, row");
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

// Layouts drawn at random: tests/bench/random_layouts.py says what is expected of each.
TEST(LongFiveD, RandomLayoutsEqualOneDevice) {
    const std::string command = fmt::format(
        "python3 tests/bench/random_layouts.py --count 50 --seed 2 --at-once 1 --build {}",
        built.string());
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

}  // namespace
}  // namespace ultrascale::test
