// Input that 04_context_parallel refuses: exit code 2, one line on stderr that says what is wrong,
// no output file touched, no process left.
#include "compare_runs.h"
#include "processes.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "04_context_parallel";

class ContextParallelBadInput : public testing::Test {
protected:
    void expect(int ranks, const std::string& arguments, const std::vector<std::string>& telling) {
        expect_ranks_refuse(ranks, chapter, "--steps 2 " + arguments, telling);
    }
    ProcessMark mark_;
};

TEST_F(ContextParallelBadInput, Options) {
    expect(2, "--cp 0", {"--cp", "0"});
    expect(2, "--variant all", {"--variant", "all", "all-gather", "ulysses"});
    expect(2, "--layout zig", {"--layout", "zig", "zigzag", "striped"});
    expect(2, "--ring-backward forward", {"--ring-backward", "forward", "reversed"});
    expect(2, "--merge fp16", {"--merge", "fp16", "bf16"});
    expect(2, "--bidirectional yes", {"--bidirectional", "yes", "on"});
    expect(2, "--demo rings", {"--demo", "rings", "balance"});
    expect(2, "--tp 2", {"--tp"});  // another chapter's
}

TEST_F(ContextParallelBadInput, LayoutsThatAVariantDoesNotKnow) {
    for (const char* variant : {"plain", "ulysses"})
        for (const char* layout : {"zigzag", "striped"})
            expect(2, fmt::format("--variant {} --layout {}", variant, layout),
                   {fmt::format("--layout {}", layout), fmt::format("--variant {}", variant),
                    "contiguous only"});
    expect(2, "--variant all-gather --layout striped",
           {"--layout striped", "--variant all-gather", "contiguous and zigzag"});
    for (const char* layout : {"contiguous", "striped"})
        expect(2, fmt::format("--bidirectional on --layout {}", layout),
               {"--bidirectional on", "--layout zigzag"});
    for (const char* backward : {"reversed", "kept"})
        expect(2, fmt::format("--document-token 10 --ring-backward {}", backward),
               {"--ring-backward has no effect", "--document-token"});
    expect(2, "--dropout 0.1 --layout striped", {"--dropout", "--layout striped", "zigzag"});
    expect(2, "--attention naive", {"--attention naive", "--attention flash or --cp 1"});
}

TEST_F(ContextParallelBadInput, GroupsThatDoNotDivide) {
    expect(3, "--cp 2", {"--cp 2", "3 ranks", "divide"});
    expect(2, "--cp 4", {"--cp 4", "2 ranks"});
    expect(4, "--variant usp", {"--variant usp", "--ulysses"});
    expect(4, "--variant usp --ulysses 3", {"--ulysses 3", "--cp 4", "divide"});
    expect(4, "--cp 2 --variant usp --ulysses 4", {"--ulysses 4", "--cp 2", "divide"});
    TempDir dir;
    const auto with = [&](const Json& changes) {
        put(dir / "config.json", config_json(changes));
        return "--seq 48 --model " + dir.path() + " ";
    };
    expect(4, with({{"num_attention_heads", 2}, {"num_key_value_heads", 2}}) + "--variant ulysses",
           {"--variant ulysses with --cp 4", "2 attention heads", "--cp 4: there are 2",
            "2 would work"});
    expect(3, with({}) + "--variant ulysses", {"--cp 3", "4 attention heads", "divide"});
    expect(4,
           with({{"num_attention_heads", 12}, {"num_key_value_heads", 3}, {"head_dim", 4}}) +
               "--variant usp --ulysses 2",
           {"--ulysses 2", "3 key-value heads", "multiple"});
}

// These sizes would not fit anywhere, so they are refused before anything is allocated.
TEST_F(ContextParallelBadInput, BeforeAnythingIsAllocated) {
    expect(3, "--model llama-3-405b --seq 8192",
           {"--cp 3", "8192 tokens", "--seq 8196 would work"});
    expect(4, "--model llama-3-405b --seq 131073 --layout striped", {"--seq 131076 would work"});
    expect(3, "--model llama-3-405b --seq 8193 --variant ulysses", {"128 attention heads"});
    expect(2, "--micro-batch 4000000", {"out of memory", "activations"});
    expect(4, "--cp 2 --micro-batch 4000000 --variant all-gather --recompute full",
           {"out of memory", "communication buffers"});
}

// The message names the next length, and that length works.
TEST_F(ContextParallelBadInput, LengthsThatCannotBeCut) {
    for (const auto& [ranks, way, length, next] :
         {std::tuple{2, "", 33, 36},
          {4, "", 34, 40},
          {3, "", 1, 6},
          {4, "--layout contiguous", 33, 36},
          {4, "--layout striped", 47, 48},
          {4, "--variant all-gather", 36, 40},
          {4, "--variant ulysses", 34, 36},
          {4, "--variant usp --ulysses 2", 36, 40},
          {4, "--variant usp --ulysses 2 --layout striped", 41, 44},
          {4, "--cp 2 --bidirectional on", 6, 8}}) {
        expect(ranks, fmt::format("{} --seq {}", way, length),
               {"--cp", fmt::format("of {} token", length), fmt::format("--seq {} would", next)});
        const Outcome works =
            train(ranks, chapter, fmt::format("--layers 1 --steps 1 {} --seq {}", way, next));
        expect_verified(works);
    }
}

TEST_F(ContextParallelBadInput, OfADemo) {
    for (const char* demo : {"ring", "balance", "merge"})
        expect(2, fmt::format("--demo {}", demo), {"--demo", "--save", "excludes"});
    const auto refuses = [](const std::string& arguments, const std::vector<std::string>& telling) {
        SCOPED_TRACE(arguments);
        TempDir dir;
        const Outcome outcome = run_ranks(2, chapter, fmt::format("{} {}", arguments, dir / "new"));
        expect_one_error_line(outcome, telling);
        EXPECT_EQ(outcome.out, "");
        EXPECT_TRUE(files_in(dir.path()).empty());
    };
    for (const char* demo : {"ring", "balance", "merge"})
        refuses(fmt::format("--demo {} --json", demo), {"--json", demo, "no figures"});
    for (const char* demo : {"ring", "merge"})
        refuses(fmt::format("--demo {} --svg", demo), {"--svg", "--demo balance"});
    refuses("--steps 1 --svg", {"--svg", "--demo balance"});
}

TEST_F(ContextParallelBadInput, Checkpoints) {
    TempDir dir;
    for (const char* file : {"config.json", "model.safetensors"})
        fs::copy(reference("gqa_untied") + "/" + file, dir.path());
    const std::string arguments =
        fmt::format("--seq 48 --load {} --data {}/tokens.bin", dir.path(), reference("gqa_untied"));
    expect(3, arguments + " --variant ulysses", {"--cp 3", "4 attention heads"});
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
