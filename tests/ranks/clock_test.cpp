// One clock for all ranks: exact on one machine, measured between machines.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "comm/comm.h"
#include "core/trace.h"

using namespace ultrascale;

// These ranks share one machine's clock, so the measurement that is made between machines can be
// checked against a known answer.
TEST(Clock, MeasuredAgreesWithExact) {
    const Communicator& world = Communicator::world();
    ASSERT_NE(this_machine(), "");
    const std::vector<double> exact = world.clock_offsets();
    EXPECT_EQ(exact[0], 0);
    const std::string rank = std::to_string(world.rank()), pair = std::to_string(world.rank() / 2);
    for (const std::string& machine : {std::string(), "machine " + rank, "machine " + pair}) {
        // Other programs on the machine may take a rank's core in the middle of a measurement. All
        // ranks get the same numbers, so they agree on whether to try again.
        double off = 1;
        for (int attempt = 0; attempt < 10 && off > 1e-3; ++attempt) {
            const std::vector<double> measured = world.clock_offsets(machine);
            ASSERT_EQ(measured.size(), exact.size());
            off = 0;
            for (size_t r = 0; r < exact.size(); ++r)
                off = std::max(off, std::abs(measured[r] - exact[r]));
        }
        EXPECT_LE(off, 1e-3) << machine;
    }
}

// By the common clock, no rank leaves a barrier before all have reached it.
TEST(Clock, OrdersWhatRanksDo) {
    const Communicator& world = Communicator::world();
    const double mine = world.clock_offsets()[size_t(world.rank())];
    for (int i = 0; i < 20; ++i) {
        const double came = now_seconds() + mine;
        world.barrier();
        const double left = now_seconds() + mine;
        for (const std::string& other : world.gather_strings(std::to_string(came)))
            EXPECT_LE(std::stod(other), left + 1e-6);
    }
}
