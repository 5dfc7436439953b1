// train/interleave.h: the order of two pieces of work that take turns, and their failures.
#include "train/interleave.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "core/trace.h"

using namespace ultrascale;

namespace {

void say_and_yield(std::string& said, const std::string& words) {
    for (const char word : words) {
        said += word;
        yield_to_other();
    }
}

TEST(Interleave, TakesTurns) {
    std::string said;
    interleave([&] { say_and_yield(said, "abc"); }, [&] { say_and_yield(said, "xyz"); });
    EXPECT_EQ(said, "axbycz");
}

TEST(Interleave, TheLongerOneGoesOnAlone) {
    std::string said;
    interleave([&] { say_and_yield(said, "a"); }, [&] { say_and_yield(said, "xyz"); });
    EXPECT_EQ(said, "axyz");
    said.clear();
    interleave([&] { say_and_yield(said, "abc"); }, [&] { say_and_yield(said, "x"); });
    EXPECT_EQ(said, "axbc");
    said.clear();
    interleave([&] { said += "a"; }, [&] { said += "x"; });
    EXPECT_EQ(said, "ax");
}

TEST(Interleave, OutsideAYieldDoesNothing) {
    std::string said;
    say_and_yield(said, "ab");
    EXPECT_EQ(said, "ab");
}

struct Unwound {
    bool& unwound;
    ~Unwound() { unwound = true; }
};

TEST(Interleave, AFailureUnwindsBoth) {
    for (const bool first : {true, false}) {
        bool unwound = false;
        const auto fails = [&] {
            yield_to_other();
            throw std::runtime_error("broken");
        };
        const auto waits = [&] {
            const Unwound guard{unwound};
            for (;;) yield_to_other();
        };
        try {
            first ? interleave(fails, waits) : interleave([&] { waits(); }, [&] { fails(); });
            FAIL() << "no exception";
        } catch (const std::runtime_error& e) {
            EXPECT_STREQ(e.what(), "broken");
        }
        EXPECT_TRUE(unwound);
        std::string said;  // and it can be used again
        interleave([&] { say_and_yield(said, "ab"); }, [&] { say_and_yield(said, "x"); });
        EXPECT_EQ(said, "axb");
    }
}

TEST(Interleave, EachKeepsItsNamesInTheTrace) {
    trace_record(true);
    std::string said;
    const auto work = [&](const char* name) {
        const TraceName part(TraceName::part, name);
        for (int i = 0; i < 2; ++i) {
            said += trace_name() + " ";
            yield_to_other();
        }
    };
    {
        const TraceName model(TraceName::part, "model");
        interleave([&] { work("a"); }, [&] { work("b"); });
        said += trace_name();
    }
    trace_record(false);
    EXPECT_EQ(said, "model.a model.b model.a model.b model");
}

}  // namespace
