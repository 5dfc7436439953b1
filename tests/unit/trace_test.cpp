#include "core/trace.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "train/step.h"

namespace ultrascale {
namespace {

// A schedule names its spans at run time ("F3", "B2"), and the strings may be gone when the trace
// is read.
TEST(Trace, ASpanKeepsANameMadeAtRunTime) {
    const auto work = [](int m) {
        const OpSpan span(fmt::format("F{}", m), 1, 2, fmt::format("stage {}", m + 1));
        phase(fmt::format("B{}", m), [] {});
    };
    work(2);  // records nothing
    trace_clear();
    trace_record(true);
    work(3);
    trace_record(false);
    const std::vector<Span> spans = trace_spans();
    trace_clear();
    ASSERT_EQ(spans.size(), 2u);
    EXPECT_EQ(spans[0].name, "B3");
    EXPECT_EQ(spans[0].lane, "phase");
    EXPECT_EQ(spans[1].name, "F3");
    EXPECT_EQ(spans[1].lane, "stage 4");
    EXPECT_EQ(spans[1].flops, 1);
    EXPECT_EQ(spans[1].bytes, 2);
}

}  // namespace
}  // namespace ultrascale
