// 06_expert_parallel with wrong input prints one line that says what would be right.
#include "refused.h"

namespace ultrascale::test {
namespace {

void refuses(int ranks, const std::string& arguments, const std::vector<std::string>& telling) {
    const std::string all = "--steps 2 --seq 16 " + arguments;
    SCOPED_TRACE(arguments);
    expect_one_error_line(ranks == 0 ? run("06_expert_parallel", all)
                                     : run_ranks(ranks, "06_expert_parallel", all, 60),
                          telling);
}

TEST(ExpertParallelBadInput, IsRefused) {
    refuses(3, "", {"--ep 3", "8 experts"});
    refuses(3, "--ep 2", {"--ep 2", "3 ranks"});
    refuses(0, "--top-k 9", {"--top-k 9", "8 experts"});
    refuses(0, "--experts 16 " + fmt::format("--load {}", reference("mixtral")),
            {"--experts 16", "experts"});
    refuses(0, "--max-nodes 1", {"--max-nodes has no effect", "--node-size"});
    refuses(2, "--node-size 1 --inter-gbps 1 --max-nodes 3", {"--max-nodes 3", "2 nodes"});
    refuses(0, "--model nano", {"--model nano", "dense", "nano-moe"});
    refuses(0, "--first-dense 8", {"--first-dense 8"});
    refuses(0, "--groups 3", {"--groups 3", "8 experts"});
    refuses(0, "--groups 4 --top-k 4", {"top", "4"});
    refuses(0, "--aux sequence --aux-over global", {"--aux-over global", "sequence"});
    refuses(0, "--overlap shared", {"--overlap shared", "--shared"});
    refuses(0, "--overlap chunks", {"--overlap chunks", "--ep 1"});
    refuses(2, "--overlap chunks --dispatch rank", {"--overlap chunks", "--dispatch expert"});
    refuses(2, "--overlap chunks --chunks 3", {"--chunks 3", "128 tokens"});
    refuses(0, "--overlap batches --grad-accum 2", {"--overlap batches", "--ep 1"});
    refuses(2, "--overlap batches", {"--overlap batches", "--grad-accum 2"});
    refuses(2, "--overlap batches --grad-accum 2 --recompute full", {"--recompute full", "none"});
    refuses(2, "--dispatch plain --shared 2", {"--dispatch plain", "no shared experts", "2"});
    refuses(2, "--dispatch plain --overlap gradients", {"--dispatch plain", "--overlap"});
    refuses(2, "--dispatch plain --node-size 1 --inter-gbps 1 --max-nodes 1",
            {"--max-nodes 1", "--dispatch plain"});
    refuses(2, "--dispatch-dtype fp8 --dispatch plain", {"--dispatch-dtype fp8", "plain"});
    refuses(2, "--dispatch-dtype fp8 --overlap chunks", {"--dispatch-dtype fp8", "chunks"});
    refuses(0, "--dispatch-dtype fp8 " + fmt::format("--load {}", reference("mixtral")),
            {"--dispatch-dtype fp8", "128"});
    const TempDir dir;
    put(dir / "loads", "1 2 3 4 5 6 7 8\n1 2 3 4 5 6 7 8\n");
    const std::string placed = "--layers 2 --loads " + (dir / "loads");
    refuses(2, "--layers 2 --loads nowhere", {"nowhere"});
    refuses(2, "--layers 3 --loads " + (dir / "loads"), {"loads", "2 layers", "3"});
    refuses(2, placed + " --experts 4", {"loads", "line 1", "4 experts"});
    refuses(0, placed, {"--loads", "--ep 1", "--ep 2"});
    refuses(3, placed, {"--ep 3", "8 experts", "--replicas 1"});
    refuses(2, placed + " --replicas 10", {"--replicas 10", "2 ranks", "8"});
    for (const char* other : {"--dispatch rank", "--dispatch plain", "--capacity-factor 1"})
        refuses(2, placed + " " + other, {"--loads", "--dispatch expert"});
    refuses(2, placed + " --trap copies-apart", {"--trap copies-apart", "--replicas"});
    refuses(0, "--save-loads x --estimate", {"--save-loads", "--estimate"});
    refuses(0, "--trap scales-of-neighbour", {"--trap", "--dispatch-dtype"});
    refuses(0, "--trap groups-masked-with-0", {"--trap", "--groups"});
    refuses(0, "--trap everything", {"--trap", "everything", "softmax-twice"});
    refuses(0, "--trap softmax-twice --aux-coef 0", {"--trap", "--aux-coef"});
}

TEST(ExpertParallelBadInput, OptionsWithoutEffect) {
    const std::string none = "has no effect: ";
    refuses(0, "--gamma 0.1", {"--gamma " + none, "--balance bias"});
    refuses(2, "--replicas 2", {"--replicas " + none, "--loads"});
    refuses(0, "--drop score", {"--drop " + none, "--capacity-factor"});
    refuses(2, "--chunks 4", {"--chunks " + none, "--overlap chunks"});
    refuses(0, "--top-groups 2", {"--top-groups " + none, "--groups"});
    refuses(0, "--capacity-factor 1 --dispatch plain", {"--dispatch " + none, "--capacity-factor"});
    refuses(0, "--capacity-factor 1 --dispatch rank", {"--dispatch " + none, "--capacity-factor"});
    refuses(2, "--compare --ep 2", {"--compare", "--ep"});
    expect_one_error_line(run("06_expert_parallel", "--demo route --json x.jsonl"),
                          {"--json", "--demo"});
}

// A program for dense models names the one that trains experts.
TEST(ExpertParallelBadInput, OtherChapters) {
    expect_one_error_line(run("00_single_gpu", "--model nano-moe"),
                          {"--model nano-moe", "06_expert_parallel"});
    expect_one_error_line(run("00_single_gpu", fmt::format("--load {}", reference("mixtral"))),
                          {"--load", "06_expert_parallel"});
}

}  // namespace
}  // namespace ultrascale::test
