// Exercise 05.b1: sizes that an interleaved schedule must refuse.
#include <gtest/gtest.h>

#include "05_pipeline/2_schedules/schedules.h"

namespace ultrascale {
using namespace ultrascale::pipeline;
namespace {

TEST(ShortGroup, IsRefused) {
    // exercise 05.b1 begin: 17 micro-batches in groups of 8 are refused, 16 are not
    const ScheduleOptions options{.chunks = 2, .group = 8};
    EXPECT_THROW(make_schedule("interleaved", 8, 17, options), UserError);
    EXPECT_NO_THROW(make_schedule("interleaved", 8, 16, options));
    // exercise 05.b1 end
}

}  // namespace
}  // namespace ultrascale
