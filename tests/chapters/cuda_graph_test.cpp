// --cuda-graph changes no bit. On a GPU micro-batches are replayed, elsewhere the run says why not.
#include "compare_runs.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

struct Case {
    int ranks;  // 0: without the launcher
    const char *chapter, *arguments;
    int replays;  // on GPUs, if graphs are used there; -1: depends on the data
};
std::vector<Case> cases() {
    std::vector<Case> all = {
        {0, "00_single_gpu", "", 7},
        {0, "00_single_gpu", "--grad-accum 3 --dtype bf16 --fp32-grads --verify", 7 * 3},
        {0, "00_single_gpu", "--recompute full --loss-chunk 40 --warmup 3", 7},
        {0, "00_single_gpu", "--recompute selective --attention naive --val-data README.md", 7},
        // Batches count different numbers of targets.
        {0, "00_single_gpu", "--document-token 10", -1},
        {0, "00_single_gpu", "--profile", 0},
        {0, "08_mixed_precision", "--recipe bf16", 7},
        {0, "08_mixed_precision", "--recipe fp16", 0},
        {0, "08_mixed_precision", "--recipe tensor --grad-accum 2", 7 * 2},
        {0, "08_mixed_precision", "--recipe deepseek", 7},
        {0, "08_mixed_precision", "--recipe te --grad-accum 2", 7 * 2},
        {2, "01_data_parallel", "--copy-engines off --sync bucket --grad-accum 2", 7 * 2},
        {2, "03_tensor_parallel", "--copy-engines off --tp 2", 7},
        {0, "00_single_gpu", "--dropout 0.1", 0}};
    if (!on_gpu) all.resize(1);  // one says why not
    return all;
}

class Replays : public testing::TestWithParam<Case> {};
TEST_P(Replays, ChangeNoBit) {
    const Case& c = GetParam();
    SCOPED_TRACE(fmt::format("{} {}", c.chapter, c.arguments));
    const TempDir dir;
    const auto with = [&](const std::string& folder, const char* option) {
        return train(c.ranks, c.chapter,
                     fmt::format("--steps 9 --micro-batch 2 --seq 32 {} --save {} {}", c.arguments,
                                 dir / folder, option));
    };
    const Outcome plain = with("plain", ""), graph = with("graph", "--cuda-graph");
    expect_same_bits(plain, graph);
    expect_same_checkpoints(dir / "plain", dir / "graph");
    expect_as_predicted(graph);
    const bool used = graph.summary.contains("graph");
    EXPECT_EQ(used, !contains(graph.out, "  graph   not used: "));
    EXPECT_EQ(used, on_gpu && c.replays != 0 && !graph.through_host);
    if (used && c.replays >= 0) {
        EXPECT_EQ(graph.summary["graph"].at("replays"), c.replays) << graph.out;
    }
}
INSTANTIATE_TEST_SUITE_P(CudaGraph, Replays, testing::ValuesIn(cases()),
                         [](const auto& test) { return std::to_string(test.index); });

TEST(CudaGraph, IsRefusedWhereAReplayWouldLeaveSomethingOut) {
    for (const char* other : {"--fresh-grads", "--noise-scale --grad-accum 2", "--estimate"})
        expect_one_error_line(run("00_single_gpu", fmt::format("--cuda-graph {}", other)),
                              {"--cuda-graph"});
    for (const char* chapter : {"01_data_parallel", "03_tensor_parallel"})
        expect_one_error_line(run(chapter, "--cuda-graph"), {"--copy-engines off"});
    for (const auto& [chapter, other] :
         {std::pair{"01_data_parallel", "--sync ring"}, {"03_tensor_parallel", "--overlap halves"}})
        expect_one_error_line(
            run(chapter, fmt::format("--cuda-graph --copy-engines off {}", other)),
            {"--cuda-graph"});
}

}  // namespace
}  // namespace ultrascale::test
