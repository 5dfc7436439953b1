// The three checks that end a chapter's run, applied on all ranks to techniques that are broken on
// purpose.
#pragma once

#include <gtest/gtest.h>

#include "lab/verify/verify.h"

namespace ultrascale {

struct Checks {
    bool verified, memory, communication;
    std::string printed;  // rank 0's output: errors, both tables, and other ranks' mistakes
};
inline void expect(const Checks& checks, bool verified, bool memory, bool communication) {
    EXPECT_EQ(checks.verified, verified) << checks.printed;
    EXPECT_EQ(checks.memory, memory) << checks.printed;
    EXPECT_EQ(checks.communication, communication) << checks.printed;
}

// Runs the checks of a finished run, and keeps their output.
inline Checks checks_of(Verifier& verifier, Report& report, const Prediction& predicted,
                        int64_t steps) {
    testing::internal::CaptureStdout();
    Checks checks{verifier.finish(report), report.memory(predicted),
                  report.communication(predicted, steps), ""};
    checks.printed = testing::internal::GetCapturedStdout();
    return checks;
}

}  // namespace ultrascale

// Skips a test that needs several ranks.
#define NEEDS_RANKS() \
    if (Communicator::world().size() == 1) GTEST_SKIP() << "one rank has nobody to share with"
