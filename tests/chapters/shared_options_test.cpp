// Options of the model and of the network that every chapter has, when several ranks train: the
// result is one device's, with memory and communication as predicted.
#include "run_program.h"

namespace ultrascale::test {
namespace {

void expect_equal(int ranks, const std::string& chapter, const std::string& arguments) {
    SCOPED_TRACE(fmt::format("{} {}", chapter, arguments));
    const Outcome outcome =
        run_ranks(ranks, chapter, "--layers 2 --seq 48 --micro-batch 2 --steps 3 " + arguments, 60);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out << outcome.err;
}

TEST(SharedOptions, OfTheModel) {
    for (const auto& [chapter, its] : {std::pair{"01_data_parallel", ""},
                                       {"02_zero", "--stage 3 "},
                                       {"03_tensor_parallel", "--sequence-parallel "}}) {
        const std::string own = its;
        expect_equal(2, chapter, own + "--loss-chunk 20 --document-token 10 --grad-accum 2");
        expect_equal(2, chapter, own + "--dropout 0.2 --recompute full");
        expect_equal(2, chapter,
                     own +
                         "--attention naive --recompute selective --loss-chunk 70 "
                         "--ignore-token 32");
    }
    expect_equal(2, "04_context_parallel", "--loss-chunk 20 --document-token 10 --grad-accum 2");
    expect_equal(2, "04_context_parallel",
                 "--variant ulysses --dropout 0.2 --recompute full --ignore-token 32");
    expect_equal(2, "05_pipeline", "--loss-chunk 20 --document-token 10 --grad-accum 2");
    expect_equal(2, "05_pipeline",
                 "--schedule zb-h1 --dropout 0.2 --recompute full --ignore-token 32");
    expect_equal(2, "06_expert_parallel", "--loss-chunk 20 --document-token 10 --grad-accum 2");
    expect_equal(2, "06_expert_parallel", "--dropout 0.2 --recompute full --ignore-token 32");
    expect_equal(2, "03_tensor_parallel", "--loss-chunk 20 --overlap chunk");
    expect_equal(2, "03_tensor_parallel", "--loss-chunk 20 --sequence-parallel --keep-gathered on");
}

// All ranks together sample the same text as one device.
TEST(SharedOptions, OfTheSample) {
    const auto sample_of = [](const Outcome& outcome) {
        EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
        return outcome.out.substr(std::min(outcome.out.size(), outcome.out.find("\nsample at")));
    };
    // The sample's 100 bytes exceed the 48 tokens of the model's context.
    const std::string same = " --layers 2 --seq 48 --micro-batch 2 --steps 2 --sample 100";
    const std::string alone = sample_of(run("00_single_gpu", "--grad-accum 2" + same));
    EXPECT_GT(alone.size(), 100u);
    EXPECT_EQ(sample_of(run_ranks(2, "01_data_parallel", same, 60)), alone);
    EXPECT_EQ(sample_of(run_ranks(2, "02_zero", "--stage 3" + same, 60)), alone);
    for (const char* own : {"", "--sequence-parallel ", "--overlap chunk "})
        EXPECT_EQ(sample_of(run_ranks(2, "03_tensor_parallel",
                                      own + std::string("--grad-accum 2") + same, 60)),
                  alone);
    for (const char* own : {"--layout striped ", "--bidirectional on ", "--variant ulysses "})
        EXPECT_EQ(sample_of(run_ranks(2, "04_context_parallel",
                                      own + std::string("--grad-accum 2") + same, 60)),
                  alone);
    for (const char* own : {"", "--schedule dualpipe "})
        EXPECT_EQ(sample_of(run_ranks(2, "05_pipeline",
                                      own + std::string("--micro-batch 1 --grad-accum 4 --layers 2 "
                                                        "--seq 48 --steps 2 --sample 100"),
                                      60)),
                  alone);
}

TEST(SharedOptions, OfTheNetwork) {
    for (const auto& [chapter, its] : {std::pair{"02_zero", "--stage 2 "},
                                       {"03_tensor_parallel", "--tp 2 "},
                                       {"04_context_parallel", "--cp 2 "},
                                       {"05_pipeline", "--pp 2 "},
                                       {"06_expert_parallel", "--ep 2 "}}) {
        const std::string own = its;
        expect_equal(4, chapter, own + "--node-size 2 --inter-gbps 1");
        const Outcome refused = run_ranks(2, chapter, own + "--node-size 4 --inter-gbps 1", 60);
        EXPECT_EQ(refused.exit_code, 2);
        EXPECT_TRUE(contains(refused.err, "--node-size 4: 2 ranks")) << refused.err;
    }
}

}  // namespace
}  // namespace ultrascale::test
