// The three checks that a chapter's run ends with, for deliberately broken techniques, on all
// ranks.
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

// Runs the checks of a finished run, and discards what they print.
inline Checks checks_of(Verifier& verifier, Report& report, const Prediction& predicted,
                        int64_t steps) {
    testing::internal::CaptureStdout();
    const Checks checks{verifier.finish(report), report.memory(predicted),
                        report.communication(predicted, steps)};
    testing::internal::GetCapturedStdout();
    return checks;
}

}  // namespace ultrascale

// Skips a test that needs several ranks.
#define NEEDS_RANKS() \
    if (Communicator::world().size() == 1) GTEST_SKIP() << "one rank has nobody to share with"
