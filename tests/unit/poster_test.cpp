// The poster of the cheatsheet: its printed figures are those of the planner and of the chapter's
// own prediction, which agree with the formulas that stand beside them.
#include "09_5d_parallel/planner/poster.h"

#include "tests/picture_checks.h"
#include "tests/test_files.h"

namespace ultrascale::test {
namespace {

using namespace five_d;

TEST(Poster, IsTheOneInTheRepositoryAndFitsOnA3) {
    TempDir dir;
    playbook::draw_poster(dir.path());
    const std::string svg = slurp(dir / "cheatsheet.svg");
    EXPECT_EQ(svg, slurp("09_5d_parallel/pictures/cheatsheet.svg")) << "make pictures";
    const std::vector<Drawn> all = read_picture(svg);
    expect_readable(all, 1587);
    EXPECT_EQ(all[0].attributes.at("width"), "420mm");
    EXPECT_NEAR(std::stod(all[0].attributes.at("height")), 297, 0.1);
    // ZeRO-1's bar has the bytes of 64 GPUs: 2 N, 4 N and 12 N / 64.
    const double N = double(parameter_count(preset("llama-3-8b")));
    const auto bytes = [&](const char* role, const std::string& hint) {
        const std::vector<Drawn> bars = drawn_as(all, "rect", role, hint);
        EXPECT_EQ(bars.size(), 1u) << hint;
        return bars.empty() ? 0 : std::stod(bars[0].hint.substr(hint.size()));
    };
    EXPECT_EQ(bytes("parameters", "ZeRO-1, parameters: "), 2 * N);
    EXPECT_EQ(bytes("gradients", "ZeRO-1, gradients: "), 4 * N);
    EXPECT_NEAR(bytes("optimizer", "ZeRO-1, optimizer: "), 12 * N / 64, 64);
    EXPECT_TRUE(has_words(all, fmt::format("{:.1f} GB", 18 * N / 1e9)));
}

// The formulas of the column "a rank sends", on the example, with gradients in fp32 where they are
// summed and everything else in bf16.
TEST(Poster, WhatARankSendsIsAsItsFormulaSays) {
    const StepShape shape = playbook::shape_of("llama-3-8b", 4096);
    const LlamaConfig& c = shape.config;
    const double N = double(parameter_count(c)), L = double(c.layers),
                 Th = 2. * 4096 * double(c.hidden), all = 63. / 64, eight = 7. / 8;
    const double kv = 2. * 2 * 512 * double(c.kv_heads * c.head_dim), dkv = 2 * kv;
    const std::map<std::string, double> expected = {
        {"data parallel", 2 * 4 * N * all},
        {"ZeRO-1", (4 + 2) * N * all},
        {"ZeRO-2", (4 * 4 + 2) * N * all},
        {"ZeRO-3", 4 * (4 + 2 + 2) * N * all},
        {"tensor + sequence",
         10 * L * 32 * Th * eight + 5 * 32 * Th * eight + 2 * 4 * N / 8 * eight},
        {"context", L * 32 * 7 * (2 * kv + dkv) + 2 * 4 * N * all},
        {"recomputation", 4 * (4 + 2 + 2) * N * all}};
    size_t found = 0;
    for (const playbook::PosterRow& row : playbook::poster_rows()) {
        const auto formula = expected.find(row.name);
        if (formula == expected.end()) continue;
        ++found;
        EXPECT_NEAR(playbook::bytes_sent(shape, *row.plan) / formula->second, 1, 0.04) << row.name;
    }
    EXPECT_EQ(found, expected.size());
}

}  // namespace
}  // namespace ultrascale::test
