// --svg: each picture shows the figures that the run also gives by --json or on the screen.
#include <cmath>
#include <ranges>

#include "refused.h"
#include "tests/picture_checks.h"

namespace ultrascale::test {
namespace {

const std::string small = "--layers 2 --seq 32 --micro-batch 2 --peak-tflops 1 ";

std::vector<Drawn> picture(const std::string& path) {
    const std::vector<Drawn> all = read_picture(slurp(path));
    expect_readable(all);
    return all;
}

// Returns the rows of a table of `chapter` from --json. The table is drawn to `dir`.
std::vector<Json> compare(int ranks, const std::string& chapter, const TempDir& dir,
                          const std::string& arguments) {
    const std::string json = dir / "out.jsonl";
    const Outcome outcome = run_ranks(ranks, chapter,
                                      fmt::format("{} --steps 3 --compare --svg {} --json {} {}",
                                                  small, dir.path(), json, arguments));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::vector<Json> rows;
    std::istringstream lines(slurp(json));
    for (std::string line; std::getline(lines, line);) {
        const Json object = Json::parse(line, nullptr, false);
        if (object.contains("row")) rows.push_back(object["row"]);
    }
    return rows;
}

double height_of(const Drawn& area) {
    const auto points = area.points();
    const auto [least, most] = std::ranges::minmax(points | std::views::values);
    return most - least;
}

TEST(Pictures, MemoryOverSteps) {
    TempDir dir;
    const Outcome run =
        train("00_single_gpu", small + "--steps 5 --no-verify --svg " + dir / "new/folder");
    const std::vector<Drawn> all = picture(dir / "new/folder/memory.svg");
    const auto area = [&](const std::string& category) {
        const std::vector<Drawn> areas = drawn_as(all, "polygon", category);
        EXPECT_EQ(areas.size(), 1u) << category;
        return areas.at(0);
    };
    const auto bytes = [&](const char* category) {
        return run.summary.at("memory").at(category).at("measured").get<double>();
    };
    const double pixels_a_byte = height_of(area("parameters")) / bytes("parameters");
    EXPECT_NEAR(height_of(area("gradients")), bytes("gradients") * pixels_a_byte, 0.02);
    // The optimizer's states are drawn as stairs: nothing in the first step, all of them in the
    // last.
    const auto corners = area("optimizer").points();
    EXPECT_EQ(corners.front(), corners.back());
    const double optimizer = bytes("optimizer") * pixels_a_byte;
    EXPECT_NEAR(height_of(area("optimizer")), optimizer, 0.02);
    const auto workspace = area("workspace").points();
    const double highest = std::ranges::min(workspace | std::views::values),
                 lowest = std::ranges::max(area("parameters").points() | std::views::values);
    EXPECT_NEAR(lowest - highest, bytes("peak") * pixels_a_byte, 0.5);
    for (int step = 1; step <= 4; ++step) EXPECT_TRUE(has_words(all, fmt::format("step {}", step)));
    EXPECT_FALSE(has_words(all, "step 5"));
}

// Checks one picture. Returns whether the sums of overlap and bucket begin during backward in it,
// which needs a core for the thread that sends.
static bool timelines_show_overlap(int micro_batch) {
    TempDir dir;
    const std::vector<Json> rows = compare(
        2, "01_data_parallel", dir, fmt::format("--bucket-mb 0.2 --micro-batch {}", micro_batch));
    EXPECT_EQ(rows.size(), 7u);
    const std::vector<Drawn> all = picture(dir / "timelines.svg");
    const auto lanes = [&](const char* role) {  // naive, overlap, bucket, from top to bottom
        std::map<double, std::vector<Drawn>> by_height;
        for (const Drawn& d : drawn_as(all, "rect", role))
            if (!d.hint.empty()) by_height[d.number("y")].push_back(d);
        std::vector<std::vector<Drawn>> by_variant;
        for (const auto& [y, variant] : by_height) by_variant.push_back(variant);
        return by_variant;
    };
    const auto backward = lanes("backward"), reduces = lanes("communication");
    const bool three = backward.size() == 3 && reduces.size() == 3 && lanes("exposed").size() == 3;
    EXPECT_TRUE(three);
    if (rows.size() != 7 || !three) return true;  // another run would be no better
    bool overlap = true;
    for (size_t v = 0; v < 3; ++v) {
        const Json& row = rows[v + 1];
        EXPECT_TRUE(has_words(all, row.at("technique").get<std::string>()));
        EXPECT_TRUE(has_words(
            all, fmt::format("step {:.1f} ms, exposed {:.1f} ms", row.at("step_ms").get<double>(),
                             row.at("exposed_ms").get<double>())))
            << row;
        EXPECT_EQ(int64_t(reduces[v].size()), row.at("calls").get<int64_t>());
        const double first = std::ranges::min_element(reduces[v], {}, [](const Drawn& d) {
                                 return d.number("x");
                             })->number("x");
        const double end = backward[v].at(0).right();
        if (v == 0)
            EXPECT_GE(first, end - 0.02);
        else
            overlap = overlap && first < end - 0.02;
    }
    return overlap;
}

TEST(Pictures, TimelinesOfTheWaysToSum) {
    // On a busy machine that thread comes late; a longer backward gives it time.
    bool overlap = false;
    for (int micro_batch = 2; micro_batch <= 128 && !overlap; micro_batch *= 2)
        overlap = timelines_show_overlap(micro_batch);
    EXPECT_TRUE(overlap);
}

TEST(Pictures, TheRingStepByStep) {
    TempDir dir;
    const Outcome run = run_ranks(4, "01_data_parallel", "--demo collectives --svg " + dir.path());
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const std::vector<Drawn> all = picture(dir / "ring.svg");
    // Parts of chunks, by their moment (from top to bottom) and by the rank that they come from.
    std::map<double, std::vector<int>> parts;
    std::map<double, int> full;
    for (int rank = 0; rank < 4; ++rank)
        for (const Drawn& d : drawn_as(all, "rect", fmt::format("rank{}", rank), "c")) {
            parts[d.number("y")].resize(4);
            ++parts[d.number("y")][size_t(rank)];
            const bool is_full = d.hint.ends_with(": 1111");
            EXPECT_TRUE(is_full || d.hint[d.hint.size() - 1 - size_t(rank)] == '1') << d.hint;
            full[d.number("y")] += is_full && rank == 0;
            EXPECT_TRUE(contains(run.out, d.hint.substr(d.hint.size() - 4))) << d.hint;
        }
    std::vector<std::vector<int>> by_moment;
    std::vector<int> full_chunks;
    for (const auto& [y, rank_counts] : parts)
        by_moment.push_back(rank_counts), full_chunks.push_back(full[y]);
    ASSERT_EQ(by_moment.size(), 7u);
    EXPECT_EQ(by_moment.front(), std::vector<int>(4, 4));
    EXPECT_EQ(by_moment[3], std::vector<int>(4, 10));  // 4 + 1 + 2 + 3
    EXPECT_EQ(by_moment.back(), std::vector<int>(4, 16));
    EXPECT_EQ(full_chunks, (std::vector<int>{0, 0, 0, 4, 8, 12, 16}));
}

TEST(Pictures, BandwidthOverNodes) {
    TempDir dir;
    const Outcome run = run_ranks(4, "01_data_parallel",
                                  "--demo bandwidth --largest-mib 0.004 --node-size 2 --inter-gbps "
                                  "0.2 --svg " +
                                      dir.path());
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const std::vector<Drawn> all = picture(dir / "nodes.svg");
    const auto values = [&](const std::string& name) {  // by nodes: GB/s, and the height in pixels
        std::map<int, std::pair<double, double>> by_nodes;
        for (const Drawn& d : all) {
            if (d.name != "polygon" || !d.hint.starts_with(name + ": ")) continue;
            const auto points = d.points();
            const auto [least, most] = std::ranges::minmax(points | std::views::values);
            by_nodes[std::stoi(d.hint.substr(d.hint.find("nodes: ") + 7))] = {
                std::stod(d.hint.substr(name.size() + 2)), (least + most) / 2};
        }
        return by_nodes;
    };
    auto published = values("published"), sheet = values("data sheet"), formula = values("formula"),
         median = values("median");
    ASSERT_EQ(published.size(), 7u);
    EXPECT_EQ(published[64].first, 32.9);
    // A doubled rate is a fifth of the height, from 16 to 512.
    EXPECT_NEAR(published[64].second - published[1].second,
                std::log2(436.0 / 32.9) * (330 - 96) / 5, 0.3);
    EXPECT_EQ(sheet[1].first, 450);
    EXPECT_EQ(sheet[64].first, 400) << "8 cards of 50 GB/s";
    // Four ranks in two nodes: 1.5 S are sent, of which a card carries 2 (4-2)/4 S, at 25 MB/s.
    ASSERT_EQ(median.size(), 2u);
    EXPECT_NEAR(formula[2].first, std::min(1.5 * 0.025, median[1].first), 1e-5);
    // Each median stands within its percentiles.
    int bars = 0;
    for (const Drawn& d : all) {
        if (d.name != "polyline" || d.points().size() != 2) continue;
        const auto points = d.points();
        if (points[0].first != points[1].first || d.attributes.at("stroke-width") != "2") continue;
        const double y = median[++bars].second;
        EXPECT_LE(points[1].second, y + 0.6);
        EXPECT_GE(points[0].second, y - 0.6);
    }
    EXPECT_EQ(bars, 2);
}

TEST(Pictures, WhatAStageHoldsAndSends) {
    TempDir dir;
    std::vector<Json> rows = compare(2, "02_zero", dir, "");
    std::erase_if(rows, [](const Json& row) { return row.at("plain") == true; });  // it is stage 1
    ASSERT_EQ(rows.size(), 4u);
    const std::vector<Drawn> all = picture(dir / "stages.svg");
    double pixels_a_byte = 0, pixels_a_sent_byte = 0;
    for (int stage = 0; stage < 4; ++stage) {
        const Json& row = rows[size_t(stage)];
        double right = 0;
        const auto expect_bar = [&](const char* role, const char* what, const char* field,
                                    double& scale) {
            const double bytes = row.at(field).get<double>();
            const std::vector<Drawn> bars = drawn_as(
                all, "rect", role, fmt::format("stage {}, {}: {:.0f} bytes", stage, what, bytes));
            ASSERT_EQ(bars.size(), bytes > 0 ? 1u : 0u) << row << what;
            if (bytes == 0) return;
            if (scale == 0) scale = bars[0].number("width") / bytes;
            EXPECT_NEAR(bars[0].number("width"), bytes * scale, 0.1) << row << what;
            right = bars[0].right();
        };
        expect_bar("parameters", "parameters", "parameter_bytes", pixels_a_byte);
        expect_bar("gradients", "gradients", "gradient_bytes", pixels_a_byte);
        expect_bar("optimizer", "optimizer", "optimizer_bytes", pixels_a_byte);
        expect_bar("communication", "communication", "gathered_bytes", pixels_a_byte);
        EXPECT_TRUE(row.at("as_predicted").get<bool>());
        // So the mark of the prediction is at the end of the bar.
        EXPECT_TRUE(std::ranges::any_of(all, [&](const Drawn& d) {
            return d.name == "polyline" && d.attributes.at("stroke-width") == "3" &&
                   std::abs(d.points().at(0).first - right) < 0.02;
        })) << stage;
        expect_bar("communication", "sent", "sent_bytes", pixels_a_sent_byte);
    }
}

TEST(Pictures, WithoutEffectOrPlaceAreRefused) {
    const auto refuses = [](const std::string& chapter, const std::string& arguments,
                            const std::vector<std::string>& telling) {
        expect_one_error_line(run(chapter, arguments), telling);
    };
    TempDir dir;
    const std::string svg = "--svg " + dir.path();
    refuses("00_single_gpu", "--steps 0 " + svg, {"--svg has no effect", "--steps"});
    refuses("00_single_gpu", "--estimate " + svg, {"--estimate", "--svg"});
    refuses("00_single_gpu", "--compare recompute " + svg, {"--compare", "--svg"});
    refuses("01_data_parallel", svg, {"--svg has no effect", "--compare"});
    refuses("01_data_parallel", svg + " --demo bandwidth", {"--svg has no effect", "--demo"});
    expect_one_error_line(
        run_ranks(2, "01_data_parallel", svg + " --demo bandwidth --node-size 2 --inter-gbps 1"),
        {"--svg", "2 ranks make one"});
    refuses("01_data_parallel", svg + " --demo collectives", {"--svg", "2 ranks"});
    refuses("02_zero", svg, {"--svg has no effect", "--compare"});
    put(dir / "file", "");
    refuses("00_single_gpu", "--svg " + dir / "file", {dir / "file", "cannot be made"});
    refuses("00_single_gpu", "--svg " + dir / "file/below", {dir / "file/below", "cannot be made"});
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

// Each format has a bar from its smallest to its largest number, on one axis of powers of ten.
TEST(Pictures, WhatFormatsReach) {
    TempDir dir;
    const Outcome outcome = run("08_mixed_precision", "--demo formats --svg " + dir.path());
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    picture(dir / "resolution.svg");
    const std::vector<Drawn> all = picture(dir / "range.svg");
    const auto bar = [&](const std::string& hint) {
        for (const Drawn& d : all)
            if (d.name == "rect" && d.hint.starts_with(hint)) return d;
        ADD_FAILURE() << hint;
        return Drawn{};
    };
    // fp32's normal numbers reach from 2^-126 to 2^128, e4m3's from 2^-6 to 448.
    const double pixels_a_decade =
        bar("fp32, normal").number("width") / std::log10(std::exp2(254.0));
    EXPECT_NEAR(bar("e4m3, normal").number("width"), pixels_a_decade * std::log10(448 * 64.0), 0.1);
    EXPECT_NEAR(bar("fp16, subnormal").number("width"), pixels_a_decade * std::log10(1024.0), 0.1);
}

TEST(Pictures, BytesOfRecipes) {
    TempDir dir;
    const std::vector<Json> rows = compare(1, "08_mixed_precision", dir, "");
    const std::vector<Drawn> all = picture(dir / "recipes.svg");
    picture(dir / "curves.svg");
    double pixels_a_byte = 0;
    for (const Json& row : rows) {
        const std::string recipe = row.at("recipe");
        double width = 0;
        for (const Drawn& d : all)
            if (d.name == "rect" && d.hint.starts_with(recipe + ", ")) width += d.number("width");
        const double bytes = row.at("bytes_per_parameter");
        if (pixels_a_byte == 0) pixels_a_byte = width / bytes;
        EXPECT_NEAR(width, bytes * pixels_a_byte, 0.1) << recipe;
    }
    EXPECT_EQ(rows.size(), 13u);
}

}  // namespace
}  // namespace ultrascale::test
