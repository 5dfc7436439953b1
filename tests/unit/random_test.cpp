#include "core/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/test_files.h"

namespace ultrascale {
namespace {

using Words = std::array<uint32_t, 4>;

// The known answers are from Random123, tests/kat_vectors, "philox4x32 10".
TEST(Random, KnownAnswers) {
    EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}),
              (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
    uint32_t f = 0xffffffff;
    EXPECT_EQ(philox4x32({f, f, f, f}, {f, f}),
              (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
    EXPECT_EQ(
        philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
        (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// NumPy drew the same numbers in tests/reference/make_reference.py.
TEST(Random, EqualsNumPy) {
    nlohmann::json cases = nlohmann::json::parse(test::slurp(test::reference("random.json")));
    ASSERT_EQ(cases.size(), 3u);
    for (const auto& c : cases) {
        Random random(c["seed"].get<uint64_t>(), c["name"].get<std::string>());
        uint64_t first = c["first"].get<uint64_t>();
        for (uint64_t i = 0; i < c["bits"].size(); ++i) {
            EXPECT_EQ(random.bits(first + i), c["bits"][i].get<uint32_t>());
            EXPECT_EQ(random.uniform(first + i), c["uniform"][i].get<float>());
            // libm and NumPy may differ in the last bit of a double, which is rarely visible after
            // rounding to float.
            EXPECT_FLOAT_EQ(random.normal(first + i), c["normal"][i].get<float>());
        }
    }
}

TEST(Random, NormalsAreThoseDrawnOneByOne) {
    const Random random(7, "span");
    for (uint64_t first : {0, 1, 2, 3, 4, 1001})
        for (size_t count : {0, 1, 2, 3, 4, 5, 8, 13, 1000}) {
            std::vector<float> all(count, NAN);
            random.normals(first, all);
            for (size_t i = 0; i < count; ++i)
                ASSERT_EQ(all[i], random.normal(first + i)) << first << " + " << i;
        }
}

TEST(Random, UniformIsNeverZeroAndNormalHasItsMoments) {
    Random random(7, "moments");
    const int n = 200'000;
    double sum = 0, squares = 0, fourth = 0, least = 1, most = 0;
    for (int i = 0; i < n; ++i) {
        double x = random.normal(i), u = random.uniform(i);
        ASSERT_TRUE(std::isfinite(x));
        sum += x, squares += x * x, fourth += x * x * x * x;
        least = std::min(least, u), most = std::max(most, u);
    }
    EXPECT_NEAR(sum / n, 0, 0.01);
    EXPECT_NEAR(squares / n, 1, 0.02);
    EXPECT_NEAR(fourth / n, 3, 0.1);
    EXPECT_GT(least, 0);
    EXPECT_LE(most, 1);
    EXPECT_LT(least, 1e-4);
    EXPECT_GT(most, 1 - 1e-4);
}

TEST(Random, StreamsOfOtherSeedsAndNamesDiffer) {
    EXPECT_NE(Random(1, "a").bits(0), Random(2, "a").bits(0));
    EXPECT_NE(Random(1, "a").bits(0), Random(1, "b").bits(0));
    EXPECT_NE(Random(1, "a").bits(0), Random(1, "a").bits(uint64_t(1) << 34));
}

}  // namespace
}  // namespace ultrascale
