// The longest sequence that fits, and the advice in an error message: both ask the prediction about
// other sizes.
#include <gtest/gtest.h>

#include <random>
#include <sstream>

#include "04_context_parallel/lab/sections.h"

namespace ultrascale {
using namespace ultrascale::context_parallel;
namespace {

constexpr int64_t gib = int64_t(1) << 30;

StepShape shape_of(const std::string& model, Recompute recompute, int64_t micro_batch = 1,
                   DType dtype = DType::bf16) {
    return {.config = preset(model),
            .model = {.dtype = dtype, .recompute = recompute},
            .grad_dtype = dtype,
            .micro_batch = micro_batch,
            .seq = 4096};
}

std::vector<ContextOptions> ways(int cp) {
    std::vector<ContextOptions> ways{
        {.cp = cp},
        {.cp = cp,
         .variant = Variant::plain,
         .layout = Layout::contiguous,
         .backward = RingBackward::restarted},
        {.cp = cp, .layout = Layout::striped, .backward = RingBackward::restarted},
        {.cp = cp, .bidirectional = true},
        {.cp = cp, .variant = Variant::all_gather, .layout = Layout::contiguous},
        {.cp = cp, .variant = Variant::ulysses, .layout = Layout::contiguous}};
    if (cp % 2 == 0) ways.push_back({.cp = cp, .variant = Variant::usp, .ulysses = 2});
    return ways;
}

int64_t longest(StepShape shape, int cp, int64_t limit) {
    return longest_sequence(shape, *with_ranks(shape, {.cp = 2}, cp), limit);
}

TEST(LargestThatFits, IsFoundWhereverItLies) {
    for (int64_t multiple : {1, 3, 8})
        for (int64_t most : {0, 7, 24, 25})
            for (int64_t border = 0; border <= 30; ++border) {
                const int64_t expected = std::min(border, most) / multiple * multiple;
                EXPECT_EQ(largest_that_fits(multiple, most, [&](int64_t n) { return n <= border; }),
                          expected);
            }
}

TEST(LongestSequence, FitsAndTheNextOneDoesNot) {
    for (const char* model : {"nano", "llama-3.2-1b", "llama-3-8b"})
        for (Recompute recompute : {Recompute::none, Recompute::full})
            for (int cp : {2, 4, 6})
                for (const ContextOptions& o : ways(cp)) {
                    StepShape shape = shape_of(model, recompute, 2);
                    if (!with_ranks(shape, o, cp)) continue;
                    for (const int64_t spare : {gib / 64, gib, 20 * gib}) {
                        const int64_t limit = fixed_bytes(shape) + spare;
                        SCOPED_TRACE(fmt::format("{} {} cp {} {}", model, way_of(shape, o), cp,
                                                 format_bytes(double(limit))));
                        const int64_t seq = longest_sequence(shape, o, limit),
                                      multiple = sequence_multiple(o);
                        EXPECT_GT(seq, 0);
                        EXPECT_EQ(seq % multiple, 0);
                        shape.seq = seq;
                        EXPECT_LE(largest_memory(shape, o).total(), limit);
                        shape.seq = seq + multiple;
                        EXPECT_GT(largest_memory(shape, o).total(), limit);
                    }
                }
}

// More tokens never need less memory: the search relies on it.
TEST(LongestSequence, MemoryGrowsWithTheLength) {
    std::mt19937 generator(1);
    for (int64_t chunk : {0, 1000})
        for (int cp : {1, 2, 8})
            for (const ContextOptions& o : ways(cp)) {
                StepShape shape = shape_of("llama-3.2-1b", Recompute::none);
                shape.model.loss_chunk = chunk;
                int64_t seq = 0, before = 0;
                for (int i = 0; i < 40; ++i) {
                    const int64_t more = std::uniform_int_distribution<int64_t>(1, 500)(generator);
                    seq += more * sequence_multiple(o);
                    shape.seq = seq;
                    const int64_t now = largest_memory(shape, o).total();
                    EXPECT_GT(now, before) << way_of(shape, o) << " cp " << cp << " seq " << seq;
                    before = now;
                }
            }
}

TEST(LongestSequence, DoublesWithTheRanks) {
    for (Recompute recompute : {Recompute::none, Recompute::full}) {
        StepShape shape = shape_of("llama-3-8b", recompute);
        shape.seq = 32768;
        const auto grows = [&](int cp) {
            return double(largest_memory(shape, *with_ranks(shape, {.cp = 2}, cp)).total() -
                          fixed_bytes(shape));
        };
        EXPECT_NEAR(grows(2) / grows(1), 0.5, 0.02);  // the ring's buffers come in
        EXPECT_NEAR(grows(64) / grows(4), 1.0 / 16, 1e-4);
        const int64_t alone = longest(shape, 1, 139 * gib);
        EXPECT_GT(alone, 4096);
        EXPECT_NEAR(double(longest(shape, 2, 139 * gib)) / double(alone), 2, 0.08);
        EXPECT_NEAR(double(longest(shape, 64, 139 * gib)) / double(longest(shape, 4, 139 * gib)),
                    16, 0.05);
    }
}

TEST(LongestSequence, IsNeverShorterWithMoreRanks) {
    for (Recompute recompute : {Recompute::none, Recompute::full})
        for (const ContextOptions& o : ways(2)) {
            const StepShape shape = shape_of("llama-3.2-1b", recompute);
            int64_t before = 0;
            for (int cp = 1; cp <= 16; cp *= 2)
                if (const auto with = with_ranks(shape, o, cp)) {
                    const int64_t now = longest_sequence(shape, *with, 30 * gib);
                    EXPECT_GT(now, before) << way_of(shape, o) << " cp " << cp;
                    before = now;
                }
        }
}

TEST(LongestSequence, ZeroIfTheModelAloneFillsTheDevice) {
    const StepShape shape = shape_of("llama-3-8b", Recompute::full);
    EXPECT_EQ(longest(shape, 64, fixed_bytes(shape)), 0);
    EXPECT_GT(longest(shape, 64, fixed_bytes(shape) + gib), 0);
}

TEST(LongestSequence, EndsWherePositionsDo) {
    const StepShape shape = shape_of("nano", Recompute::full);
    EXPECT_EQ(longest(shape, 64, int64_t(1) << 60), most_positions / 128 * 128);
}

// There is one formula: predict(), whose result a run compares with its measurement.
TEST(LargestMemory, IsWhatIsPredictedForTheRankThatNeedsTheMost) {
    for (Recompute recompute : {Recompute::none, Recompute::full})
        for (const ContextOptions& o : ways(4)) {
            const StepShape shape = shape_of("nano", recompute, 2, DType::fp32);
            Llama model(shape.config, shape.model);
            int64_t most = 0;
            for (int rank = 0; rank < o.ring_degree(); ++rank)
                most = std::max(
                    most,
                    predict(shape, o, model.parameters(), 3, Group("cp", 4), rank).memory.total());
            EXPECT_EQ(largest_memory(shape, o).total(), most) << way_of(shape, o);
        }
}

TEST(WithRanks, OnlyWhatCanShareASequence) {
    StepShape shape = shape_of("nano", Recompute::none);  // 8 heads
    const ContextOptions ulysses{
        .cp = 2, .variant = Variant::ulysses, .layout = Layout::contiguous},
        usp{.cp = 4, .variant = Variant::usp, .ulysses = 4};
    EXPECT_TRUE(with_ranks(shape, ulysses, 8));
    EXPECT_FALSE(with_ranks(shape, ulysses, 16));
    EXPECT_FALSE(with_ranks(shape, ulysses, 3));
    EXPECT_FALSE(with_ranks(shape, usp, 2));
    EXPECT_TRUE(with_ranks(shape, usp, 64));
    EXPECT_EQ(with_ranks(shape, ulysses, 1)->variant, Variant::ring);  // alone: no variant
    EXPECT_EQ(with_ranks(shape, {.cp = 1, .layout = Layout::contiguous}, 4)->layout,
              Layout::zigzag);  // the default
    shape.model.attention = AttentionKind::naive;
    EXPECT_TRUE(with_ranks(shape, {.cp = 1}, 1));
    EXPECT_FALSE(with_ranks(shape, {.cp = 1}, 2));
}

TEST(LayerInputs, AreWhatForwardKeepsOfAllLayers) {
    const StepShape shape = shape_of("llama-3-8b", Recompute::full, 3);
    for (const ContextOptions& o : ways(4)) {
        for (const ActivationMoment& moment : activation_moments(local_sizes(shape, o)))
            for (const auto& [what, bytes] : moment.terms)
                if (what == "what forward kept of all layers") {
                    EXPECT_DOUBLE_EQ(bytes, layer_inputs(shape, o));
                }
    }
}

// Splits the advice "these options would: A, B or C; more ranks that ... would: D" into its
// choices.
std::vector<std::string> choices(std::string advice) {
    for (const std::string between : {", ", " or ", "; "})
        for (size_t at; (at = advice.find(between)) != std::string::npos;)
            advice.replace(at, between.size(), "\n");
    std::vector<std::string> found;
    std::istringstream lines(advice);
    for (std::string line; std::getline(lines, line);)
        found.push_back(line.substr(line.find("--")));
    return found;
}

TEST(WhatNeedsLess, AllThatItNamesFits) {
    std::map<std::string, int> named;
    for (const auto& [model, micro_batch, spare] : {std::tuple{"llama-3-8b", 1, 19.0},
                                                    {"llama-3-8b", 4, 19.0},
                                                    {"llama-3-8b", 1, 4.0},
                                                    {"llama-3-8b", 64, 0.5},
                                                    {"llama-3-8b", 64, 0.05},
                                                    {"nano", 8, 0.1},
                                                    {"nano", 8, 0.003},
                                                    {"nano", 64, 0.0002}})
        for (const ContextOptions& o : ways(4)) {
            StepShape shape = shape_of(model, Recompute::none, micro_batch);
            shape.seq = 131072;
            const int64_t limit = fixed_bytes(shape) + int64_t(spare * gib);
            const std::string advice = what_needs_less(shape, o, limit);
            SCOPED_TRACE(fmt::format("{} {} {}: {}", model, micro_batch, way_of(shape, o), advice));
            ASSERT_FALSE(fits(shape, o, limit));
            for (const std::string& choice : choices(advice)) {
                StepShape changed = shape;
                ContextOptions with = o;
                std::istringstream words(choice);
                for (std::string option, value; words >> option >> value; ++named[option])
                    if (option == "--recompute")
                        changed.model.recompute = Recompute::full;
                    else if (option == "--loss-chunk")
                        changed.model.loss_chunk = std::stoll(value);
                    else if (option == "--micro-batch")
                        changed.micro_batch = std::stoll(value);
                    else if (option == "--seq")
                        changed.seq = std::stoll(value);
                    else if (option == "--cp")
                        with.cp = std::stoi(value);
                    else
                        ADD_FAILURE() << option;
                EXPECT_NO_THROW(check_shares(changed.config, with, changed.seq)) << choice;
                EXPECT_TRUE(fits(changed, with, limit)) << choice;
            }
        }
    for (const char* option : {"--recompute", "--loss-chunk", "--micro-batch", "--seq", "--cp"})
        EXPECT_GT(named[option], 0) << option;
    const StepShape shape = shape_of("llama-3-8b", Recompute::none);
    EXPECT_NE(what_needs_less(shape, {.cp = 4}, gib).find("a smaller --model"), std::string::npos);
}

}  // namespace
}  // namespace ultrascale
