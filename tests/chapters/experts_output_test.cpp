// 06_expert_parallel's picture of the experts' loads, and its trace, which shows where the host
// waits for counts.
#include <regex>

#include "compare_runs.h"
#include "tests/picture_checks.h"

namespace ultrascale::test {
namespace {

const char* const chapter = "06_expert_parallel";

// Returns how often the host waits for counts, on all ranks.
int64_t waits(const std::string& arguments) {
    TempDir dir;
    train(2, chapter,
          fmt::format("--layers 3 --seq 16 --steps 2 --no-verify --trace {} {}", dir / "trace.json",
                      arguments));
    const Json trace = Json::parse(slurp(dir / "trace.json"));
    return std::ranges::count_if(trace.at("traceEvents"), [](const Json& event) {
        return event.at("ph") == "X" &&
               event.at("name").get<std::string>().starts_with("host waits for counts");
    });
}

// A rank must know the number of rows that arrive before it can go on, unless a capacity fixes it.
TEST(ExpertTrace, ShowsWhereTheHostWaitsForCounts) {
    const int64_t forwards = 2 * 3 * 2;  // ranks, layers, steps
    EXPECT_EQ(waits(""), 2 * forwards);  // once for its own counts, once for the other ranks'
    EXPECT_EQ(waits("--overlap chunks --chunks 4"), 2 * forwards) << "once for all chunks";
    EXPECT_EQ(waits("--recompute full"), 4 * forwards);
    EXPECT_EQ(waits("--dispatch rank"), 2 * forwards) << "for ranks' rows, and for experts'";
    EXPECT_EQ(waits("--capacity-factor 1"), 0);
    EXPECT_EQ(waits("--ep 1"), 0);
}

// The heights of the bands at the first and at the last step, measured from each band's top edge.
struct Bands {
    std::vector<double> first, last;  // shares of the height
};
Bands bands_of(const std::vector<Drawn>& all, size_t experts) {
    Bands bands;
    constexpr double height = 230;  // the height of 100 %
    double first = 340, last = 340;
    for (size_t e = 0; e < experts; ++e) {
        const std::string role = fmt::format("rank{}", e);
        const std::vector<Drawn> areas = drawn_as(all, "polygon", role);
        EXPECT_LE(areas.size(), 1u);
        if (areas.empty()) {  // never chosen
            bands.first.push_back(0), bands.last.push_back(0);
            continue;
        }
        // The upper edge comes first, from left to right, then the lower one, from right to left.
        const auto points = areas[0].points();
        const auto right = std::ranges::max_element(
            points, [](const auto& a, const auto& b) { return a.first < b.first; });
        bands.first.push_back((first - points[0].second) / height), first = points[0].second;
        bands.last.push_back((last - right->second) / height), last = right->second;
    }
    return bands;
}

TEST(ExpertPicture, HasThePrintedLoads) {
    TempDir dir;
    constexpr size_t experts = 8;
    const Outcome run = train(
        2, chapter,
        "--layers 2 --seq 32 --micro-batch 2 --steps 6 --lr 3e-3 --no-verify --svg " + dir.path());
    const std::vector<Drawn> all = read_picture(slurp(dir / "loads.svg"));
    expect_readable(all);
    const Bands bands = bands_of(all, experts);
    // Lines of the table: step, largest and smallest load, and each expert's load over the mean.
    const auto expect_as_printed = [&](int step, const std::vector<double>& shares) {
        std::smatch line;
        const std::regex row(fmt::format("\n +{} +[0-9.]+ +[0-9.]+((?: +[0-9.]+){{8}})\n", step));
        ASSERT_TRUE(std::regex_search(run.out, line, row)) << run.out;
        std::istringstream numbers(line[1]);
        double sum = 0;
        for (size_t e = 0; e < experts; ++e) {
            double load = 0;
            numbers >> load;
            EXPECT_NEAR(shares[e] * double(experts), load, 0.01) << "step " << step << ", e" << e;
            sum += shares[e];
        }
        EXPECT_NEAR(sum, 1, 1e-3);
    };
    expect_as_printed(1, bands.first);
    expect_as_printed(6, bands.last);
    EXPECT_NE(bands.first, bands.last);
    for (size_t e = 0; e < experts; ++e) EXPECT_TRUE(has_words(all, fmt::format("expert {}", e)));
}

}  // namespace
}  // namespace ultrascale::test
