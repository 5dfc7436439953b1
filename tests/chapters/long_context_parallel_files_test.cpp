// 04_context_parallel loads Hugging Face's checkpoints, trains them as transformers does, saves
// them unchanged, and continues them with any group of ranks.
#include "checkpoint_grids.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "04_context_parallel";

const Grid grids[] = {{1, "--micro-batch 8"},
                      {2, "--micro-batch 2 --grad-accum 4 --bidirectional on"},
                      {4, "--micro-batch 8 --layout striped"},
                      {4, "--cp 2 --micro-batch 4 --variant all-gather --recompute full"},
                      {4, "--cp 2 --micro-batch 1 --grad-accum 4 --ring-backward restarted"},
                      {8, "--micro-batch 8 --layout contiguous"}};
// These grids are for models whose heads can be shared.
const Grid ulysses_degree[] = {{4, "--micro-batch 8 --variant ulysses"},
                               {8, "--micro-batch 8 --variant usp --ulysses 4"},
                               {8, "--cp 4 --micro-batch 4 --variant usp --ulysses 2"}};

TEST(ContextParallelReference, LossesAndGradientNormsAreTransformers) {
    for (const char* name : references) {
        for (const Grid& grid : grids) expect_as_reference(chapter, name, grid);
        for (const Grid& grid : ulysses_degree)
            if (std::string(name) != "tied_head_dim")
                expect_as_reference(chapter, name, grid);  // 5 heads
    }
}

TEST(ContextParallelCheckpoint, ComesBackBitwise) { expect_comes_back_bitwise(chapter, grids); }

// Ranks that share sequences train weights and optimizer states, which any other group can
// continue.
TEST(ContextParallelCheckpoint, GoesOnAnywhere) {
    TempDir dir;
    const std::string name = "gqa_untied",
                      data = fmt::format("--data {}/tokens.bin", reference(name)),
                      arguments = fmt::format("--load {} {} --steps 2", dir / "saved", data);
    const Outcome straight = train_grid(chapter, grids[3], load(name) + " --steps 4");
    train_grid(chapter, grids[3], fmt::format("{} --steps 2 --save {}", load(name), dir / "saved"));
    const std::vector<double> losses = straight.of("loss"), rest(losses.begin() + 2, losses.end());
    const auto expect_the_rest = [&](const Outcome& run) {
        EXPECT_EQ(run.of("step"), (std::vector<double>{3, 4}));
        EXPECT_LE(largest_difference(run.of("loss"), rest), on_gpu ? 1e-5 : 1e-6);
    };
    for (const Grid& grid : grids) expect_the_rest(train_grid(chapter, grid, arguments));
    for (const Grid& grid : ulysses_degree) expect_the_rest(train_grid(chapter, grid, arguments));
    const std::string same = "--seq 64 --lr 1e-3 --no-verify " + arguments;
    expect_the_rest(train("00_single_gpu", same + " --micro-batch 8"));
    expect_the_rest(train(2, "02_zero", same + " --micro-batch 4"));
    expect_the_rest(train(2, "03_tensor_parallel", same + " --micro-batch 8"));
}

TEST(ContextParallelCheckpoint, ValidatesLikeOneDevice) {
    const std::string arguments = fmt::format(
        "{0} --seq 48 --steps 1 --no-verify --val-data {1}/tokens.bin --val-every 1 "
        "--micro-batch 3",
        load("gqa_untied"), reference("gqa_untied"));
    const Outcome single = train("00_single_gpu", arguments);
    for (const char* way : {"--layout striped", "--variant usp --ulysses 2"}) {
        SCOPED_TRACE(way);
        const Outcome shared = train(4, chapter, fmt::format("{} {}", arguments, way));
        expect_as_predicted(shared);
        EXPECT_EQ(single.of("val_loss").size(), 1u);
        EXPECT_LE(largest_difference(shared.of("val_loss"), single.of("val_loss")), 1e-5);
    }
}

}  // namespace
}  // namespace ultrascale::test
