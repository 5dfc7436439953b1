// What a deliberately broken technique is measured by: the three checks that a chapter's run ends
// with, on all ranks.
#pragma once

#include <gtest/gtest.h>

#include "train/verify.h"

namespace ultrascale {

struct Checks {
    bool verified, memory, communication;
};
inline void expect(const Checks& checks, bool verified, bool memory, bool communication) {
    EXPECT_EQ(checks.verified, verified);
    EXPECT_EQ(checks.memory, memory);
    EXPECT_EQ(checks.communication, communication);
}

// The checks of a run that has ended; what they print is not shown.
inline Checks checks_of(Verifier& verifier, Report& report, const Prediction& predicted,
                        int64_t steps) {
    testing::internal::CaptureStdout();
    const Checks checks{verifier.finish(report), report.memory(predicted),
                        report.communication(predicted, steps)};
    testing::internal::GetCapturedStdout();
    return checks;
}

}  // namespace ultrascale

// What one rank alone cannot break.
#define NEEDS_RANKS() \
    if (Communicator::world().size() == 1) GTEST_SKIP() << "one rank has nobody to share with"
