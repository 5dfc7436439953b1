// Windows and prefixes of 04_context_parallel, right and broken on purpose, on any number of ranks
// (part of comm_test).
#include "context_break.h"

namespace ultrascale::context_break {
using namespace ultrascale::context_parallel;
namespace {

constexpr int64_t some_window = 13, some_prefix = 17;

ContextOptions restarted(Layout layout) { return ring_of(layout, RingBackward::restarted); }
std::vector<ContextOptions> with_windows() {
    ContextOptions both_ways = bidirectional(), mixed = usp(Layout::contiguous);
    both_ways.backward = mixed.backward = RingBackward::restarted;
    return {restarted(Layout::contiguous),
            restarted(Layout::zigzag),
            restarted(Layout::striped),
            both_ways,
            all_gather(Layout::zigzag),
            all_gather(Layout::contiguous),
            ulysses(),
            mixed};
}

TEST(ContextWindowsBreak, AWindowPasses) {
    NEEDS_RANKS();
    for (const int64_t window : {int64_t(1), some_window})
        for (const ContextOptions& context : with_windows()) {
            SCOPED_TRACE(fmt::format("{}, window {}", describe(context, 1), window));
            expect(train(context, {.window = window}), true, true, true);
        }
}

TEST(ContextWindowsBreak, APrefixPasses) {
    NEEDS_RANKS();
    for (const int64_t prefix : {int64_t(2), some_prefix})
        for (const ContextOptions& context : every_variant()) {
            if (context.variant == Variant::plain || context.bidirectional) continue;
            SCOPED_TRACE(fmt::format("{}, prefix {}", describe(context, 1), prefix));
            expect(train(context, {.prefix = prefix}), true, true, true);
        }
    for (const ContextOptions& context :
         {restarted(Layout::contiguous), restarted(Layout::striped), all_gather(Layout::zigzag)})
        expect(train(context, {.window = some_window, .prefix = some_prefix}), true, true, true);
}

// A window of W keys beside the query's own is one too wide.
TEST(ContextWindowsBreak, TheWindowIsOneKeyTooWide) {
    NEEDS_RANKS();
    Breaks breaks{.window = some_window};
    breaks.batch = [](HostBatch& part, const Communicator&) {
        const auto wider = [](std::vector<int32_t>& starts) {
            for (int32_t& start : starts) start = std::max(start - 1, 0);
        };
        auto whole = std::make_shared<HostBatch>(*part.whole);
        wider(part.document_starts), wider(whole->document_starts);
        part.whole = whole;
    };
    for (const ContextOptions& context : with_windows())
        EXPECT_FALSE(train(context, breaks).verified) << describe(context, 1);
}

// Each rank makes the window, or the prefix, of its own tokens only.
TEST(ContextWindowsBreak, MasksAreMadeAfterTheCut) {
    NEEDS_RANKS();
    Breaks window{.window = some_window}, prefix{.prefix = some_prefix};
    window.batch = [](HostBatch& part, const Communicator&) {
        for (size_t i = 0; i < part.document_starts.size(); ++i)
            part.document_starts[i] =
                first_visible(int32_t(i % size_t(part.length)), 0, some_window);
    };
    prefix.batch = [](HostBatch& part, const Communicator& cp) {
        if (cp.rank() > 0) part.prefix = 0;
    };
    expect(train(all_gather(Layout::contiguous), window), false, true, true);
    expect(train(all_gather(Layout::zigzag), prefix), false, true, true);
}

// The targets of the prefix count, although each of its tokens sees its own.
TEST(ContextWindowsBreak, ThePrefixPredictsItself) {
    NEEDS_RANKS();
    Breaks breaks{.prefix = some_prefix};
    breaks.batch = [](HostBatch& part, const Communicator&) {
        for (size_t i = 0; i + 1 < part.targets.size(); ++i)
            if (part.targets[i] < 0) part.targets[i] = part.tokens[i + 1];
    };
    for (const ContextOptions& context : {ring_of(Layout::contiguous), ulysses()})
        expect(train(context, breaks), false, true, true);
}

// A ring that is planned for another window than the batch has.
Breaks planned_for(int64_t window) {
    return {.attention = [window](const Ingredients& i) -> std::unique_ptr<AttentionCore> {
                const auto plan = std::make_shared<std::optional<PlanOfBatch>>();
                return std::make_unique<RingAttention>(
                    i.cp, i.stream, i.options,
                    [=, &parallel = i.parallel, layout = i.options.layout,
                     n = i.cp.size()](const Batch& batch) -> const PlanOfBatch& {
                        plan->emplace(
                            RingPlan(SequenceCut(layout, n, T, {window, 0}), false, nullptr),
                            parallel.plan_of(batch).document_starts);
                        return **plan;
                    },
                    RowOrders());
            },
            .window = some_window};
}

TEST(ContextWindowsBreak, KeysStopTooEarly) {
    NEEDS_RANKS();
    for (const Layout layout : {Layout::contiguous, Layout::zigzag, Layout::striped}) {
        EXPECT_TRUE(train(restarted(layout), planned_for(some_window)).verified);
        const Checks early = train(restarted(layout), planned_for(1));
        EXPECT_FALSE(early.verified);
        EXPECT_FALSE(early.communication);
    }
}

// Keys that nobody sees travel: the result is right, but the bytes are not.
TEST(ContextWindowsBreak, KeysGoFurtherThanTheWindow) {
    NEEDS_RANKS();
    const Checks further = train(restarted(Layout::contiguous), planned_for(0));
    EXPECT_TRUE(further.verified) << further.printed;
    EXPECT_FALSE(further.communication);
    EXPECT_FALSE(
        train(restarted(Layout::contiguous), {.window = some_window, .predicted_window = 0})
            .communication);
}

}  // namespace
}  // namespace ultrascale::context_break
