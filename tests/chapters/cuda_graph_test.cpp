// --cuda-graph changes no bit. On a GPU micro-batches are replayed, elsewhere the run says why not.
#include "compare_runs.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

TEST(CudaGraph, ChangesNoBit) {
    struct Case {
        const char *chapter, *arguments;
        int replays;  // on a GPU; -1: depends on the data
    };
    for (const Case& c : {
             Case{"00_single_gpu", "", 7},
             {"00_single_gpu", "--grad-accum 3 --dtype bf16 --fp32-grads --verify", 1 + 7 * 3},
             {"00_single_gpu", "--recompute full --loss-chunk 40 --warmup 3", 7},
             {"00_single_gpu", "--recompute selective --attention naive --val-data README.md", 7},
             {"00_single_gpu", "--document-token 10",
              -1},  // batches count different numbers of targets
             {"00_single_gpu", "--profile", 0},
             {"00_single_gpu", "--dropout 0.1", 0},
         }) {
        SCOPED_TRACE(fmt::format("{} {}", c.chapter, c.arguments));
        const TempDir dir;
        const auto with = [&](const std::string& folder, const char* option) {
            return train(c.chapter,
                         fmt::format("--steps 9 --micro-batch 2 --seq 32 {} --save {} {}",
                                     c.arguments, dir / folder, option));
        };
        const Outcome plain = with("plain", ""), graph = with("graph", "--cuda-graph");
        expect_same_bits(plain, graph);
        expect_same_checkpoints(dir / "plain", dir / "graph");
        expect_as_predicted(graph);
        const bool used = graph.summary.contains("graph");
        EXPECT_EQ(used, !contains(graph.out, "  graph   not used: "));
        EXPECT_EQ(used, on_gpu && !contains(c.arguments, "--profile") &&
                            !contains(c.arguments, "--dropout"));
        if (used && c.replays >= 0) {
            EXPECT_EQ(graph.summary["graph"].at("replays"), c.replays) << graph.out;
        }
    }
}

TEST(CudaGraph, IsRefusedWhereAReplayWouldLeaveSomethingOut) {
    for (const char* other : {"--fresh-grads", "--noise-scale --grad-accum 2", "--estimate"})
        expect_one_error_line(run("00_single_gpu", fmt::format("--cuda-graph {}", other)),
                              {"--cuda-graph"});
}

}  // namespace
}  // namespace ultrascale::test
