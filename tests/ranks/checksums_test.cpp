#include "lab/report/checksums.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/test_files.h"

namespace ultrascale {
namespace {

using nlohmann::json;

struct Lines {
    std::vector<json> checksums;
    json summary;
    std::string printed = {};
};
Lines lines_of(const std::string& file) {
    Lines lines;
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
        const json object = json::parse(line);
        if (object.contains("checksums")) lines.checksums.push_back(object["checksums"]);
        if (object.contains("summary")) lines.summary = object["summary"]["checksums"];
    }
    return lines;
}

Parameter parameter(const std::string& name, Range rows, float value) {
    Parameter p{.name = name, .shape = {64, 2}, .slice = {rows, {0, 2}}};
    const std::vector<float> values(size_t(rows.size() * 2), value);
    p.grad = Tensor::from_host<float>(values, {rows.size(), 2}, Memory::gradient);
    return p;
}

// What a run of three steps writes: a copied tensor, and one that is split over the ranks. From
// step `wrong` on, the last rank's copy differs by one bit.
Lines run(int64_t wrong, const char* kind) {
    const Communicator& world = Communicator::world();
    const int n = world.size(), me = world.rank();
    const test::TempDir folder;
    Options options;
    options.json = folder / "run.json";
    Report report("test", options, StepShape{}, 3);
    Checksums sums(report, 0);
    const Parameter shard = parameter("shard", {me, me + 1}, float(me));
    testing::internal::CaptureStdout();
    for (int64_t step = 1; step <= 3; ++step) {
        const bool odd = step >= wrong && me == n - 1;
        const auto copy = [&](const char* of) {
            return parameter("copy", {0, 64}, odd && std::string(of) == kind ? 1.0000001f : 1.f);
        };
        sums.begin_step(step);
        const int32_t token = odd && std::string("data") == kind ? 8 : 7;
        sums.batch(0, {.sequences = 1, .length = 1, .tokens = {token}}, {step, step + 1});
        Parameter own = copy("own_gradients"), gradient = copy("gradients"),
                  weight = copy("weights");
        sums.gradient_complete(own, {});
        sums.gradients({{gradient, gradient.grad}, {shard, shard.grad}});
        sums.end_step(step, {{weight, weight.grad}, {shard, shard.grad}});
    }
    sums.finish();
    report.finish();
    Lines lines = me == 0 ? lines_of(options.json) : Lines{};
    lines.printed = testing::internal::GetCapturedStdout();
    return lines;
}

TEST(Checksums, CopiesAreComparedAndShardsAreNot) {
    const int n = Communicator::world().size();
    const Lines lines = run(4, "");
    if (Communicator::world().rank() != 0) return;
    ASSERT_EQ(lines.checksums.size(), size_t(3 * n));
    const json& last = lines.checksums.back();
    EXPECT_EQ(last["rank"], n - 1);
    EXPECT_EQ(last["data"]["0"]["rows"], json({3, 4}));
    EXPECT_NEAR(last["own_gradients"]["copy"]["norm"], std::sqrt(128), 1e-6);
    EXPECT_TRUE(last["weights"].contains(fmt::format("shard[{}:{},0:2]", n - 1, n)));
    EXPECT_EQ(lines.checksums[0]["weights"]["shard[0:1,0:2]"]["zeros"], 1);
    for (const char* kind : {"data", "gradients", "weights"}) {
        EXPECT_EQ(lines.summary[kind]["compared"], n > 1 ? 3 : 0) << kind;
        EXPECT_EQ(lines.summary[kind]["different"], 0) << kind;
    }
    const std::string row = fmt::format("  {:<25} {:>10} {:>10}\n", "gradients, summed",
                                        n > 1 ? "3" : "-", n > 1 ? "0" : "-");
    EXPECT_NE(lines.printed.find(row), std::string::npos) << lines.printed;
    EXPECT_EQ(lines.summary["rows"]["read"], 6);  // once for the replica, however many ranks
    EXPECT_EQ(lines.summary["rows"]["distinct"], 6);
}

TEST(Checksums, TheFirstStepAndTensorThatDifferAreNamed) {
    const int n = Communicator::world().size();
    if (n == 1) GTEST_SKIP() << "one rank has no copies";
    for (const char* wrong : {"data", "gradients", "weights"}) {
        const Lines lines = run(2, wrong);
        if (Communicator::world().rank() != 0) continue;
        for (const char* kind : {"data", "gradients", "weights"})
            EXPECT_EQ(lines.summary[kind]["different"], kind == std::string(wrong) ? 2 : 0);
        const json& first = lines.summary[wrong]["first"];
        EXPECT_EQ(first["step"], 2);
        const bool data = wrong == std::string("data");
        EXPECT_EQ(first["name"], data ? "replica 0, micro-batch 0" : "copy");
        // Of two ranks it cannot be told which is wrong.
        EXPECT_EQ(first["ranks"], n == 2 ? json({0, 1}) : json({n - 1}));
    }
}

}  // namespace
}  // namespace ultrascale
