// 09_5d_parallel's checkpoints: Hugging Face's are loaded, trained as transformers trained them,
// saved unchanged, and continued by any layout.
#include "checkpoint_grids.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "09_5d_parallel";

// The references have two layers and two key-value heads; one has five attention heads, which tp
// does not divide.
std::vector<Grid> grids_of(const std::string& name) {
    std::vector<Grid> grids = {
        {4, "--cp 2 --zero 3 --micro-batch 4"},
        {8, "--pp 2 --cp 2 --zero 2 --micro-batch 1 --grad-accum 4 --schedule zb-h1"},
        {4, "--pp 2 --zero 3 --micro-batch 1 --grad-accum 4"}};
    if (name == "tied_head_dim") return grids;
    for (const Grid& grid :
         {Grid{4, "--tp 2 --zero 1 --micro-batch 2 --grad-accum 2"},
          Grid{4, "--pp 2 --tp 2 --sequence-parallel --micro-batch 2 --grad-accum 4"},
          Grid{8, "--tp 4 --cp 2 --micro-batch 8 --variant all-gather"},
          Grid{8, "--pp 2 --tp 2 --zero 3 --micro-batch 1 --grad-accum 4 --order pp,dp,ep,cp,tp"}})
        grids.push_back(grid);
    return grids;
}

TEST(FiveDReference, LossesAndGradientNormsAreTransformers) {
    for (const char* name : references)
        for (const Grid& grid : grids_of(name)) expect_as_reference(chapter, name, grid);
}

TEST(FiveDCheckpoint, ComesBackBitwise) {
    for (const char* name : references) expect_comes_back_bitwise(chapter, name, grids_of(name));
}

TEST(FiveDCheckpoint, GoesOnAtAnyLayout) {
    for (const char* name : {"gqa_untied", "tied_head_dim"}) {
        TempDir dir;
        const std::vector<Grid> grids = grids_of(name);
        const std::string data = fmt::format("--data {}/tokens.bin", reference(name)),
                          rest = fmt::format("--load {} {} --steps 2", dir / "saved", data);
        const Outcome straight = train_grid(chapter, grids[1], load(name) + " --steps 4");
        train_grid(chapter, grids[1],
                   fmt::format("{} --steps 2 --save {}", load(name), dir / "saved"));
        const std::vector<double> all = straight.of("loss"), losses(all.begin() + 2, all.end());
        const auto expect_the_rest = [&](const Outcome& run) {
            EXPECT_EQ(run.of("step"), (std::vector<double>{3, 4}));
            EXPECT_LE(largest_difference(run.of("loss"), losses), on_gpu ? 1e-5 : 1e-6);
        };
        for (const Grid& grid : grids) expect_the_rest(train_grid(chapter, grid, rest));
        expect_the_rest(
            train("00_single_gpu", "--seq 64 --lr 1e-3 --no-verify --micro-batch 8 " + rest));
    }
}

TEST(FiveDCheckpoint, ValidatesLikeOneDevice) {
    const std::string arguments =
        fmt::format("{0} --seq 48 --steps 1 --no-verify --val-data {1}/tokens.bin --val-every 1",
                    load("gqa_untied"), reference("gqa_untied"));
    const Outcome single = train("00_single_gpu", arguments + " --micro-batch 4 --grad-accum 2");
    for (const char* layout : {"--pp 2 --tp 2 --sequence-parallel --zero 3 --micro-batch 2",
                               "--pp 2 --cp 2 --zero 1 --micro-batch 2"}) {
        SCOPED_TRACE(layout);
        const Outcome run =
            train(8, chapter, fmt::format("{} {} --grad-accum 2", arguments, layout));
        expect_as_predicted(run);
        EXPECT_EQ(single.of("val_loss").size(), 1u);
        EXPECT_LE(largest_difference(run.of("val_loss"), single.of("val_loss")), 1e-5);
    }
}

}  // namespace
}  // namespace ultrascale::test
