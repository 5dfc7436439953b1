// --verify of 06_expert_parallel when routers must choose between scores that are equal up to
// rounding. Two correct programs then choose differently. Verify must neither report that as an
// error nor take an error for that.
#include <cstring>

#include "compare_runs.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "06_expert_parallel";
const std::string small = "--layers 2 --seq 32 --micro-batch 2 --lr 2e-3 --verify ";

int64_t flipped(const Outcome& run) {
    return run.summary.at("verify").at("choices_flipped").get<int64_t>();
}

// Saves a checkpoint in which experts 0 and 5 of each layer get the same score up to rounding.
void save_tied_experts(const std::string& dir, const std::string& router) {
    train(0, chapter, fmt::format("{} {} --steps 0 --save {}", small, router, dir));
    const std::string path = dir + "/model.safetensors";
    std::string bytes = slurp(path);
    uint64_t header;
    std::memcpy(&header, bytes.data(), sizeof header);
    int routers = 0;
    const Json tensors = Json::parse(bytes.substr(8, header));
    for (const auto& [name, tensor] : tensors.items()) {
        if (!name.ends_with(".gate.weight")) continue;
        ++routers;
        const uint64_t row = tensor.at("shape").at(1).get<uint64_t>() * sizeof(float);
        char* const first = &bytes[8 + header + tensor.at("data_offsets").at(0).get<uint64_t>()];
        std::memcpy(first + 5 * row, first, row);
        for (uint64_t at = 0; at < row; at += 3 * sizeof(float)) first[5 * row + at] ^= 1;
    }
    EXPECT_EQ(routers, 2);
    put(path, bytes);
}
Outcome train_tied_experts(int ranks, const std::string& router, const std::string& options,
                           int expected_exit_code = 0) {
    TempDir dir;
    save_tied_experts(dir.path(), router);
    const Outcome run =
        train(ranks, chapter,
              fmt::format("{} {} --steps 3 --load {} {}", small, router, dir.path(), options),
              expected_exit_code);
    EXPECT_GT(flipped(run), 0) << run.out;
    EXPECT_GT(run.summary.at("verify").at("margin_step_1").get<double>(), 0);
    return run;
}
const std::string bias = "--router sigmoid --balance bias --gamma 0.1 ";

TEST(TiedExperts, ThePlainTrainingFollowsTheRun) {
    expect_verified(train_tied_experts(0, "", "--grad-accum 2"));
    expect_verified(train_tied_experts(2, "", "--dispatch rank --recompute full"));
    expect_verified(train_tied_experts(2, "", "--capacity-factor 1 --drop score"));
    expect_verified(train_tied_experts(4, bias + "--groups 4 --top-groups 2", "--ep 2"));
}

TEST(TiedExperts, AnErrorIsStillSeen) {
    for (const auto& [router, trap, line] :
         {std::tuple{std::string(), "experts-divided-by-ep", "gradient "},
          {std::string(), "softmax-twice --aux-coef 0.01", "gradient "},
          {bias, "weights-from-biased", "weights "}}) {
        SCOPED_TRACE(trap);
        const Outcome run =
            train_tied_experts(2, router, fmt::format("--lr 1e-3 --trap {}", trap), 1);
        EXPECT_TRUE(missed(run, line)) << run.out;
    }
}

// All tokens are alike, so rounding decides which of them an expert drops.
TEST(ExpertChoices, DropsAreFollowed) {
    TempDir dir;
    put(dir / "alike.txt", std::string(400, 'x'));
    const Outcome run =
        train(2, chapter,
              small + "--steps 2 --capacity-factor 0.8 --drop score --data " + (dir / "alike.txt"));
    expect_verified(run);
    EXPECT_GT(flipped(run), 0) << run.out;
}

// Forced choices are determined for a whole micro-batch, in whatever chunks its rows travel.
TEST(ExpertChoices, ForcedOnesDoNotDependOnChunks) {
    for (const char* forced : {"--skew 0.3", "--force-balance", "--skew 0.3 --capacity-factor 1"}) {
        SCOPED_TRACE(forced);
        const std::string arguments = fmt::format("{} --steps 2 --seq 24 {} ", small, forced);
        const Outcome whole = train(2, chapter, arguments),
                      chunks = train(2, chapter, arguments + "--overlap chunks --chunks 4");
        expect_verified(whole), expect_verified(chunks);
        if (!contains(forced, "capacity")) expect_close(whole, chunks);
    }
}

// With so many tokens, a few of these runs choose differently in later steps. A bias amplifies
// that, because it moves by the sign of a difference of loads.
TEST(LongExpertChoices, NoCorrectRunMisses) {
    int64_t all_flips = 0;
    for (int seed = 1; seed <= 3; ++seed)
        for (const auto& [ranks, layout] :
             {std::pair{4, "--ep 2"},
              {4, "--ep 4 --capacity-factor 1.25 --drop score"},
              {2, "--ep 2 --capacity-factor 1 --grad-accum 2 --recompute full"}}) {
            const std::string arguments = fmt::format(
                "--layers 4 --seq 128 --micro-batch 4 --lr 2e-3 --verify --steps 6 --router "
                "sigmoid --groups 2 --top-groups 1 --balance bias --gamma 0.05 --seed {} {}",
                seed, layout);
            SCOPED_TRACE(arguments);
            const Outcome run = train(ranks, chapter, arguments);
            expect_verified(run);
            all_flips += flipped(run);
        }
    EXPECT_GT(all_flips, 0);
}

}  // namespace
}  // namespace ultrascale::test
