// The pictures of 09_5d_parallel/SCALE.md: they are those in the repository, they can be read, and
// their marks lie where the planner's functions and the published numbers say.
#include "09_5d_parallel/planner/scale_pictures.h"

#include "09_5d_parallel/planner/step_picture.h"
#include "09_5d_parallel/planner/sweep_picture.h"
#include "tests/picture_checks.h"
#include "tests/test_files.h"

namespace ultrascale::test {
namespace {

using namespace five_d;

// Draws a picture, and returns what is drawn in it. Fails if the repository has another one.
std::vector<Drawn> drawn(void draw(const std::string&), const std::string& name) {
    TempDir dir;
    draw(dir.path());
    const std::string svg = slurp(dir / name);
    EXPECT_EQ(svg, slurp("09_5d_parallel/pictures/" + name)) << "make pictures";
    const std::vector<Drawn> all = read_picture(svg);
    expect_readable(all);
    return all;
}

struct Marked {
    double x, y, value, at;  // the middle in pixels; "name: value unit ... at"
};
std::vector<Marked> marks(const std::vector<Drawn>& all, const std::string& name) {
    std::vector<Marked> found;
    for (const Drawn& d : all) {
        if (d.name != "polygon" || !d.hint.starts_with(name + ": ")) continue;
        Marked m{};
        double left = 1e9, right = 0, top = 1e9, bottom = 0;
        for (const auto& [x, y] : d.points())
            left = std::min(left, x), right = std::max(right, x), top = std::min(top, y),
            bottom = std::max(bottom, y);
        m.x = (left + right) / 2, m.y = (top + bottom) / 2;
        m.value = std::stod(d.hint.substr(name.size() + 2));
        m.at =
            std::stod(d.hint.substr(d.hint.find_last_of(' ', d.hint.find_last_of("0123456789"))));
        found.push_back(m);
    }
    return found;
}

TEST(ScalePictures, DataParallelismIsSlowedByTheMeasuredNetwork) {
    const std::vector<Drawn> all = drawn(playbook::draw_dp_scaling, "dp_scaling.svg");
    const std::vector<Marked> constant = marks(all, "constant cards"),
                              slower = marks(all, "measured cards"),
                              published = marks(all, "published"), plain = marks(all, "plain");
    ASSERT_EQ(constant.size(), 7u);
    ASSERT_EQ(slower.size(), 7u);
    ASSERT_EQ(published.size(), 6u);
    EXPECT_GT(constant.back().value, 99);
    double rate = 100;
    for (size_t i = 0; i < 6; ++i) {
        rate *= 1 - playbook::dp_drops[i].value / 100;
        EXPECT_NEAR(published[i].value, rate, 0.06);
        // Percent and pixels are proportional, and marks of as many GPUs stand above each other.
        EXPECT_NEAR(published[i].y, 330 - rate / 100 * 240, 0.5) << i;
        EXPECT_NEAR(published[i].x, slower[i].x, 0.5);
        EXPECT_NEAR(published[i].value, slower[i].value, 12) << "the formula is far off";
    }
    // At 512 GPUs the sum takes most of the step: 2 (n-1)/n of 4 bytes a parameter at 32.9 GB/s.
    const StepShape shape = playbook_rows()[0].shape;
    const double sum = 2 * 511. / 512 * 4 * double(parameter_count(shape.config)) / 32.9e9;
    MemoryModel memory(shape);
    const double step = CostModel(shape, find_hardware("h100"), memory).of({.dp = 8}).seconds() *
                        100 / slower.back().value;
    EXPECT_GT(sum, 0.75 * step);
    EXPECT_LT(sum, step);
    for (const Marked& m : plain) {
        EXPECT_EQ(m.value, plain[0].value);
        EXPECT_NEAR(m.value, 37, 0.75) << "the playbook's axis";
    }
    const std::vector<Marked> three = marks(all, "ZeRO-3");
    ASSERT_EQ(three.size(), 7u);
    const double saved = 18 * double(parameter_count(shape.config)) / 1e9 * (1. / 8 - 1. / 512);
    EXPECT_NEAR(three.front().value - three.back().value, saved, 0.11);
}

TEST(ScalePictures, TheLargestMicroBatchFitsAndTheNextDoesNot) {
    const std::vector<Drawn> all = drawn(playbook::draw_tp_batches, "tp_batches.svg");
    for (const bool sp : {false, true}) {
        const std::string name = sp ? "tp + sp" : "tp alone";
        const std::vector<Marked> ours = marks(all, name),
                                  theirs = marks(all, name + ", published");
        ASSERT_EQ(ours.size(), 5u);
        ASSERT_EQ(theirs.size(), 5u);
        MemoryModel memory(playbook_rows()[1].shape, Program::eager);
        for (size_t i = 0; i < 5; ++i) {
            const auto& [tp, batch] = (sp ? playbook::tp_sp_batches : playbook::tp_batches)[i];
            EXPECT_EQ(theirs[i].value, batch);
            EXPECT_EQ(ours[i].at, tp);
            Plan plan{.tp = tp, .micro_batch = int64_t(ours[i].value)};
            plan.tensor.sequence_parallel = sp;
            EXPECT_LE(double(memory.worst(plan).most), 0.94 * 80e9);
            ++plan.micro_batch;
            EXPECT_GT(double(memory.worst(plan).most), 0.94 * 80e9);
            // An octave of the batch is a seventh of the height.
            EXPECT_NEAR(theirs[i].y - ours[i].y, std::log2(ours[i].value / batch) * (340 - 76) / 7,
                        1);
        }
    }
}

TEST(ScalePictures, MemoryByLength) {
    const std::vector<Drawn> all =
        drawn(playbook::draw_recompute_by_length, "recompute_by_length.svg");
    const auto last = [&](const std::string& name) {
        const std::vector<Marked> found = marks(all, name);
        EXPECT_FALSE(found.empty()) << name;
        return found.empty() ? Marked{} : found.back();
    };
    // At 128k only tp and cp fit, and only with recomputed layers.
    EXPECT_LT(last("tp 8, sp, full").value, 80);
    EXPECT_LT(last("cp 8, ZeRO-3, full").value, 80);
    EXPECT_EQ(last("cp 8, ZeRO-3, full").at, 131072);
    for (const char* name : {"one GPU, full", "dp 8, ZeRO-3, full", "pp 8, full", "cp 8, full",
                             "tp 8, sp, flash", "cp 8, ZeRO-3, flash"})
        EXPECT_GT(last(name).value, 80) << name;
    // One GPU's figures are those of --estimate.
    for (const Marked& m : marks(all, "one GPU, flash")) {
        const StepShape shape = playbook::shape_of("llama-3-8b", int64_t(m.at));
        EXPECT_NEAR(m.value, double(estimate_memory(shape).total()) / 1e9, 0.02 * m.value) << m.at;
    }
    EXPECT_TRUE(marks(all, "cp 8, selective").empty()) << "a ring computes in tiles";
}

TEST(ScalePictures, NoLayoutBeatsTheHullOfTheSweep) {
    const std::vector<Drawn> all = drawn(playbook::draw_sweep, "sweep.svg");
    const PublishedRow row = playbook_rows()[8];
    EXPECT_EQ(row.name, " 4 x 8, 8.86B");
    Planner planner(
        {.shape = row.shape, .hardware = find_hardware("h100"), .gpus = 32, .sequences = 256});
    const std::vector<Ranked> fit = planner.plan().fit, hull = playbook::hull_of(fit);
    ASSERT_GT(hull.size(), 3u);
    for (const Ranked& r : fit)
        EXPECT_TRUE(std::ranges::any_of(hull, [&](const Ranked& h) {
            return h.memory.most <= r.memory.most && h.seconds <= r.seconds;
        })) << describe(r.plan);
    const std::vector<Marked> published = marks(all, "published");
    ASSERT_EQ(published.size(), 1u);
    EXPECT_EQ(published[0].value, row.memory_gb);
    EXPECT_NEAR(published[0].y, 470 - row.mfu / 60 * (470 - 96), 0.5);
    EXPECT_NEAR(published[0].x, 60 + row.memory_gb * 1.073741824 / 80 * 480, 0.5);
}

TEST(ScalePictures, TheStepsPartsAddUp) {
    const std::vector<Drawn> all = drawn(playbook::draw_step, "step.svg");
    // Milliseconds, and pixels, of the rectangles whose hint begins so.
    const auto sum = [&](const std::string& begin, const std::string& contains = "") {
        std::pair<double, double> of{0, 0};
        for (const Drawn& d : all)
            if (d.name == "rect" && d.hint.starts_with(begin) &&
                d.hint.find(contains) != std::string::npos && d.hint.ends_with(" ms"))
                of.first += std::stod(d.hint.substr(d.hint.find(": ") + 2)),
                    of.second += d.number("width");
        return of;
    };
    // Embedding and layers are the first stage's forward, and fill the chart's width.
    const auto forward = sum("stage 0 forward 0"), layers = sum("layer "),
               embedding = sum("embedding");
    EXPECT_NEAR(layers.first + embedding.first, forward.first, 1.2);
    EXPECT_NEAR(layers.second + embedding.second, 780, 0.3);
    // A layer's parts are the layer, forward and backward.
    const StepShape shape = playbook::shape_of("llama-3-70b", 8192);
    const Hardware hardware = find_hardware("h100");
    const UnitCost layer = LayerCosts(shape, hardware, playbook::anatomy_plan).layer(false);
    double parts = 0;
    for (const char* part :
         {"q, k, v", "attention", "o", "norms", "gate, up", "SwiGLU", "down", "tp"})
        parts += sum(part, " backward: ").second;
    EXPECT_NEAR(parts, 780, 0.5);
    EXPECT_NEAR(sum("down", " forward: ").first / 1e3, sum("down", " backward: ").first / 2e3,
                1e-4);
    EXPECT_NEAR(sum("tp", " backward: ").first, 1e3 * layer.backward.tensor, 0.05);
    EXPECT_NEAR(layers.first, 21e3 * layer.forward.all(), 1.1);
    // 8 micro-batches a stage, forward and backward.
    int actions = 0;
    for (const Drawn& d : all)
        actions += d.name == "rect" && d.hint.starts_with("stage ") && d.hint.ends_with(" ms");
    EXPECT_EQ(actions, 2 * 8 * 4);
}

TEST(ScalePictures, HeatmapTakesTheWholeBatch) {
    const std::vector<Drawn> all = drawn(
        [](const std::string& directory) {
            Report report("09_5d_parallel", {}, playbook::shape_of("nano", 128), 0);
            playbook::heatmap(report, directory);
        },
        "heatmap.svg");
    int cells = 0;
    for (const Drawn& d : all) {
        const size_t at = d.hint.rfind(", ");
        if (d.name != "rect" || d.hint.find(" nodes: MFU ") == std::string::npos) continue;
        ++cells;
        const std::string layout = d.hint.substr(d.hint.find("%, ") + 3);
        int64_t dp = 1, micro_batch = 0, micro_batches = 0;
        std::sscanf(layout.c_str(), "dp%ld", &dp);
        std::sscanf(d.hint.c_str() + at, ", %ld x %ld", &micro_batch, &micro_batches);
        EXPECT_EQ(dp * micro_batch * micro_batches, 256) << d.hint;
    }
    EXPECT_EQ(cells, 26);
    for (const PublishedRow& row : playbook_rows())
        EXPECT_TRUE(has_words(all, fmt::format("({:.1f})", row.mfu))) << row.name;
}

}  // namespace
}  // namespace ultrascale::test
