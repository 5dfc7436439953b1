// Exercise 00.3: the gradient noise scale of norms that follow from a known G and S.
#include <gtest/gtest.h>

#include "00_single_gpu/3_batch_size.h"

namespace ultrascale {
using namespace ultrascale::single_gpu;
namespace {

// With |G|^2 = 3 and tr(S) = 24, the gradient of a batch of B has the squared norm 3 + 24 / B.
double squared_norm(double batch) { return 3 + 24 / batch; }

TEST(NoiseScale, IsWhatTheNormsAreMadeOf) {
    NoiseScale noise;
    for (int step = 0; step < 4; ++step) {
        noise.add(4, squared_norm(4), 32, squared_norm(32));
        EXPECT_NEAR(noise.trace(), 24, 1e-9);
        EXPECT_NEAR(noise.squared_gradient(), 3, 1e-9);
        EXPECT_NEAR(noise.sequences(), 8, 1e-9);
    }
    EXPECT_EQ(noise.count(), 4);
}

TEST(NoiseScale, AveragesBeforeItDivides) {
    NoiseScale noise;
    noise.add(1, 10, 2, 6);   // tr(S) = 8, |G|^2 = 2
    noise.add(1, 30, 2, 16);  // 28 and 2
    EXPECT_NEAR(noise.trace(), (0.95 * 0.05 * 8 + 0.05 * 28) / (1 - 0.95 * 0.95), 1e-9);
    EXPECT_NEAR(noise.squared_gradient(), 2, 1e-9);
}

}  // namespace
}  // namespace ultrascale
