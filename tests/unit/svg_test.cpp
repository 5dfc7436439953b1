// Pictures: the file is XML, contains the given words, and is the same in every run.
#include "lab/pictures/svg.h"

#include <cmath>

#include "lab/pictures/charts.h"
#include "tests/picture_checks.h"

namespace ultrascale::test {
namespace {

Svg example() {
    Svg svg(900, 200, "A title", "What is to be seen");
    svg.rect({100, 60, 320, 24}, Role::gradients, "gradients: 6.3 MiB");
    svg.outline({100, 60, 320, 24});
    svg.label({100, 60, 320, 24}, "6.3 MiB");
    svg.text(94, 77, "stage 0", {.anchor = Text::end, .bold = true});
    svg.arrow({{100, 120}, {420, 120}, {420, 180}}, {.role = Role::communication, .width = 2});
    return svg;
}

TEST(Svg, IsReadableXml) {
    const std::vector<Drawn> all = read_picture(example().document());
    expect_readable(all);
    EXPECT_EQ(all[0].attributes.at("viewBox"), "0 0 900 200");
    EXPECT_EQ(all[0].hint, "A title");
    EXPECT_TRUE(has_words(all, "A title"));
    const std::vector<Drawn> bars = drawn_as(all, "rect", "gradients");
    ASSERT_EQ(bars.size(), 1u);
    EXPECT_EQ(bars[0].hint, "gradients: 6.3 MiB");
    EXPECT_EQ(bars[0].right(), 420);
    EXPECT_EQ(example().document(), example().document());
}

TEST(Svg, WordsAreEscaped) {
    Svg svg(600, 80, "a < b & \"c\" > d", "]]> </desc>");
    svg.text(20, 60, std::string("\x01 \xff \xe2\x82 <script> \xc3\x97 \xce\xa8\n"));
    svg.rect({0, 0, 1, 1}, Role::ink, "\" onload=\"x");
    const std::vector<Drawn> all = read_picture(svg.document());
    EXPECT_EQ(all[0].hint, "a < b & \"c\" > d");
    EXPECT_EQ(all[2].words, "]]> </desc>");
    // Characters that XML does not allow become question marks; the multiplication sign and Psi are
    // UTF-8.
    EXPECT_TRUE(has_words(all, "? ? ?? <script> \xc3\x97 \xce\xa8?")) << svg.document();
    EXPECT_EQ(all.back().words, "\" onload=\"x");
}

TEST(Svg, ThatIsBrokenIsNoticed) {
    const std::string good = example().document();
    EXPECT_THROW(read_picture(good + "x"), std::runtime_error);
    EXPECT_THROW(read_picture(good.substr(0, good.size() / 2)), std::runtime_error);
    std::string amp = good;
    amp.replace(amp.find("stage 0"), 7, "stage&0");
    EXPECT_THROW(read_picture(amp), std::runtime_error);
    EXPECT_THROW(Svg(900, 100, "", "").text(NAN, 0, "x"), std::logic_error);
}

// A role has a colour on both backgrounds: the style defines its class, once for both or once for
// each.
TEST(Svg, EveryRoleHasAColour) {
    const std::string style = read_picture(Svg(9, 9, "", "").document()).at(3).words;
    EXPECT_NE(style.find("prefers-color-scheme:dark"), std::string::npos);
    for (int role = 0; role <= int(Role::rank7); ++role) {
        Svg svg(900, 100, "", "");
        svg.rect({1, 1, 1, 1}, Role(role), "it");
        const std::vector<Drawn> all = read_picture(svg.document());
        const auto it = std::ranges::find(all, "it", &Drawn::hint);
        ASSERT_NE(it, all.end());
        const std::string its = it->attributes.at("class").substr(std::string("fill ").size());
        EXPECT_NE(style.find("." + its + "{color:#"), std::string::npos) << its;
    }
    EXPECT_EQ(role_of(Memory::host), Role::host);
    EXPECT_EQ(role_of_rank(9), role_of_rank(1));
}

TEST(Charts, TicksAreRound) {
    EXPECT_EQ(ticks(10, 5), (std::vector<double>{0, 2, 4, 6, 8, 10}));
    EXPECT_EQ(ticks(143, 8), (std::vector<double>{0, 20, 40, 60, 80, 100, 120, 140}));
    EXPECT_EQ(ticks(0, 5), std::vector<double>{0});
    const double mib = 1 << 20;
    EXPECT_EQ(byte_ticks(82.4 * mib, 5),
              (std::vector<double>{0, 20 * mib, 40 * mib, 60 * mib, 80 * mib}));
}

TEST(Charts, BarsAreAsLongAsTheirFigures) {
    Svg svg(900, 200, "", "");
    const Axis across = {0, 200, 100, 500};
    EXPECT_EQ(
        draw_stacked_bar(
            svg, across, 60, 20,
            {{Role::parameters, 50, "p"}, {Role::host, 0, "none"}, {Role::gradients, 100, "g"}}),
        400);
    draw_lane(svg, across, 100, 20,
              {{Role::forward, 0, 100, "f", "forward"}, {Role::exposed, 100, 101, "e", "waits"}});
    const std::vector<Drawn> all = read_picture(svg.document());
    EXPECT_EQ(drawn_as(all, "rect", "parameters").at(0).number("width"), 100);
    EXPECT_EQ(drawn_as(all, "rect", "gradients").at(0).number("x"), 200);
    EXPECT_TRUE(drawn_as(all, "rect", "host").empty());
    EXPECT_EQ(drawn_as(all, "rect", "forward").at(0).number("width"), 200);
    EXPECT_TRUE(has_words(all, "forward"));
    EXPECT_FALSE(has_words(all, "waits"));  // there is no room for it
}

TEST(Charts, AreasAreStacked) {
    Svg svg(900, 300, "", "");
    draw_stacked_areas(
        svg, {0, 3, 0, 300}, {0, 10, 200, 100}, {{1, 0, 0}, {1, 4, 0}, {1, 2, 0}},
        {{Role::parameters, "low"}, {Role::activations, "high"}, {Role::host, "none"}});
    const std::vector<Drawn> all = read_picture(svg.document());
    using Points = std::vector<std::pair<double, double>>;
    EXPECT_EQ(drawn_as(all, "polygon", "parameters").at(0).points(),
              (Points{{0, 190}, {300, 190}, {300, 200}, {0, 200}}));
    EXPECT_EQ(drawn_as(all, "polygon", "activations").at(0).points(), (Points{{0, 190},
                                                                              {100, 190},
                                                                              {100, 150},
                                                                              {200, 150},
                                                                              {200, 170},
                                                                              {300, 170},
                                                                              {300, 190},
                                                                              {0, 190}}));
    EXPECT_TRUE(drawn_as(all, "polygon", "host").empty());
}

// Curves that end at the same height have names that can be read, in the curves' order.
TEST(Charts, NamesMakeRoomForEachOther) {
    Svg svg(900, 300, "Curves", "Four curves that end close to each other");
    const Panel panel =
        draw_panel(svg, {60, 80, 400, 160}, "of n", "n", binary_scale(0, 3), linear_scale(100, 4));
    std::vector<std::pair<double, std::string>> names;
    for (int i = 0; i < 4; ++i) {
        const Curve curve{fmt::format("c{}", i), {{0, 10}, {3, 50.0 + i}}, {}, Mark(i), i == 3};
        names.emplace_back(
            draw_curve(svg, panel, curve, [](Point p) { return fmt::format("{:g}", p.y); }),
            curve.name);
    }
    draw_names(svg, panel.across.end + 8, names);
    const std::vector<Drawn> all = read_picture(svg.document());
    expect_readable(all);
    EXPECT_EQ(panel.up(50), 160);
    std::map<std::string, double> heights;
    for (const Drawn& d : all)
        if (d.name == "text") heights[d.words] = d.number("y");
    for (int i = 1; i < 4; ++i)  // c3 ends highest
        EXPECT_GE(heights[fmt::format("c{}", i - 1)] - heights[fmt::format("c{}", i)], 15.5);
    EXPECT_TRUE(has_words(all, "8") && has_words(all, "50"));
    // Only marks of a published curve are hollow, and no line joins them.
    EXPECT_EQ(drawn_as(all, "polygon", "paper", "c3: ").size(), 2u);
    EXPECT_EQ(drawn_as(all, "polygon", "ink", "c0: ").size(), 2u);
}

}  // namespace
}  // namespace ultrascale::test
