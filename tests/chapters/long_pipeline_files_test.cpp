// 05_pipeline loads Hugging Face's checkpoints, trains them as transformers does, saves them
// unchanged, and continues them with any number of stages.
#include "checkpoint_grids.h"
#include "pipeline_runs.h"

namespace ultrascale::test::pipeline {
namespace {

// The reference models have two layers.
const Grid grids[] = {{1, "--micro-batch 8"},
                      {1, "--micro-batch 2 --grad-accum 4 --schedule zb-h1"},
                      {2, "--micro-batch 1 --grad-accum 8"},
                      {2, "--micro-batch 2 --grad-accum 4 --schedule afab --recompute full"},
                      {2, "--micro-batch 1 --grad-accum 8 --schedule zb-h2"},
                      {2, "--micro-batch 1 --grad-accum 8 --schedule dualpipe"},
                      {1, "--micro-batch 1 --grad-accum 8 --schedule zbv"},
                      {4, "--pp 2 --micro-batch 1 --grad-accum 4 --schedule zb-h1"},
                      {2, "--micro-batch 1 --grad-accum 8 --schedule zb-h2 --post-validation"}};

TEST(PipelineReference, LossesAndGradientNormsAreTransformers) {
    for (const char* name : references)
        for (const Grid& grid : grids) expect_as_reference(chapter, name, grid);
}

TEST(PipelineCheckpoint, ComesBackBitwise) { expect_comes_back_bitwise(chapter, grids); }

// A pipeline trains weights and optimizer states, which any other layout can continue.
TEST(PipelineCheckpoint, GoesOnAnywhere) {
    for (const char* name : {"gqa_untied", "tied_head_dim"}) {
        TempDir dir;
        const std::string data = fmt::format("--data {}/tokens.bin", reference(name)),
                          arguments = fmt::format("--load {} {} --steps 2", dir / "saved", data);
        const Outcome straight = train_grid(chapter, grids[4], load(name) + " --steps 4");
        train_grid(chapter, grids[4],
                   fmt::format("{} --steps 2 --save {}", load(name), dir / "saved"));
        const std::vector<double> losses = straight.of("loss"),
                                  rest(losses.begin() + 2, losses.end());
        const auto expect_the_rest = [&](const Outcome& run) {
            EXPECT_EQ(run.of("step"), (std::vector<double>{3, 4}));
            EXPECT_LE(largest_difference(run.of("loss"), rest), on_gpu ? 1e-5 : 1e-6);
        };
        for (const Grid& grid : grids) expect_the_rest(train_grid(chapter, grid, arguments));
        const std::string same = "--seq 64 --lr 1e-3 --no-verify " + arguments;
        expect_the_rest(train("00_single_gpu", same + " --micro-batch 8"));
        expect_the_rest(train(2, "02_zero", same + " --stage 3 --micro-batch 4"));
    }
}

TEST(PipelineCheckpoint, ValidatesLikeOneDevice) {
    const std::string arguments = fmt::format(
        "{0} --seq 48 --steps 1 --no-verify --val-data {1}/tokens.bin --val-every 1 "
        "--micro-batch 3 --grad-accum 4",
        load("gqa_untied"), reference("gqa_untied"));
    const Outcome single = train("00_single_gpu", arguments);
    for (const char* way : {"--schedule 1f1b", "--schedule dualpipe"}) {
        SCOPED_TRACE(way);
        const Outcome stages = train(2, chapter, fmt::format("{} {}", arguments, way));
        expect_as_predicted(stages);
        EXPECT_EQ(single.of("val_loss").size(), 1u);
        EXPECT_LE(largest_difference(stages.of("val_loss"), single.of("val_loss")), 1e-5);
    }
}

}  // namespace
}  // namespace ultrascale::test::pipeline
