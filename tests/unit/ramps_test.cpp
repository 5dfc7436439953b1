// The ramps of 00_single_gpu: batches that grow by steps or by tokens, and sequences that grow.
#include <gtest/gtest.h>

#include "00_single_gpu/lab/batch_ramp.h"
#include "00_single_gpu/lab/seq_ramp.h"
#include "tests/test_files.h"

namespace ultrascale {
using namespace ultrascale::single_gpu;
namespace {

using test::expect_error;

std::vector<int64_t> sizes(const BatchRamp& ramp, const std::vector<int64_t>& steps) {
    std::vector<int64_t> all;
    for (int64_t step : steps) all.push_back(ramp.sequences(step));
    return all;
}

TEST(BatchRamp, CountsStepsOrTokens) {
    const BatchRamp steps("8:100,16:200,32", 8, 8, 128);
    EXPECT_EQ(sizes(steps, {0, 99, 100, 299, 300, 9999}),
              (std::vector<int64_t>{8, 8, 16, 16, 32, 32}));
    // 10,000 tokens are 9.8 micro-batches of 1,024; 25,000 tokens are 2.4 such steps.
    const BatchRamp tokens("10K:25K,0.02M", 8, 8, 128);
    EXPECT_EQ(sizes(tokens, {0, 2, 3}), (std::vector<int64_t>{80, 80, 160}));
    EXPECT_EQ(tokens.largest(), 160);
    EXPECT_EQ(BatchRamp("1K:1K,1K", 8, 8, 4096).sequences(0), 8);  // at least a micro-batch
    EXPECT_EQ(BatchRamp("", 24, 8, 128).sequences(5), 24);
}

// MiniMax-01's report doubles 16 million tokens at 69, 790 and 4,700 billion.
TEST(BatchRamp, ReadsAPublishedOne) {
    const BatchRamp ramp("16M:69B,32M:721B,64M:3.91T,128M", 1, 1, 8192);
    int64_t step = 0, tokens = 0;
    std::vector<double> doubled_at;
    for (const BatchRamp::Stage& stage : ramp.stages()) {
        EXPECT_NEAR(double(stage.sequences) * 8192, 16e6 * double(1 << doubled_at.size()), 8192);
        tokens += (std::min<int64_t>(stage.until_step, 1'000'000) - step) * stage.sequences * 8192;
        step = stage.until_step;
        doubled_at.push_back(double(tokens) / 1e9);
    }
    ASSERT_EQ(doubled_at.size(), 4u);
    EXPECT_NEAR(doubled_at[0], 69, 0.1);
    EXPECT_NEAR(doubled_at[1], 790, 0.1);
    EXPECT_NEAR(doubled_at[2], 4700, 0.2);
}

TEST(BatchRamp, SequencesBeforeAddUp) {
    const BatchRamp ramp("8:3,16:2,24", 8, 8, 128);
    int64_t sum = 0;
    for (int64_t step = 0; step < 9; sum += ramp.sequences(step++))
        EXPECT_EQ(ramp.sequences_before(step), sum) << step;
}

TEST(BatchRamp, RefusesWhatItCannotRead) {
    for (const char* text : {"16M:100,32", "16:2M,32", "16X:1B,32M", "M:1B,2M", "-1M:1B,2M",
                             "1e9M:1B,2M", "nanM:1B,2M", "1M:,2M", "1M:1B,", "1M:1B", "8:1,"})
        expect_error([&] { BatchRamp(text, 8, 8, 128); }, "--batch-ramp " + std::string(text));
    EXPECT_EQ(BatchRamp("16M", 8, 8, 128).sequences(0), 125000);  // one size is a ramp, too
}

TEST(SeqRamp, CountsStepsOrShares) {
    const SeqRamp ramp("32:60%,64:2,128", 10);
    std::vector<int64_t> lengths;
    for (int64_t step = 0; step < 10; ++step) lengths.push_back(ramp.length(step));
    EXPECT_EQ(lengths, (std::vector<int64_t>{32, 32, 32, 32, 32, 32, 64, 64, 128, 128}));
    EXPECT_EQ(ramp.last(), 128);
    EXPECT_FALSE(SeqRamp());
    const StepShape whole{.config = {}, .model = {}, .micro_batch = 2, .seq = 128};
    EXPECT_EQ(ramp.shape(whole, 0).seq, 32);
    EXPECT_EQ(ramp.shape(whole, 0).micro_batch, 8);
    EXPECT_EQ(ramp.shape(whole, 9).micro_batch, 2);
}

TEST(SeqRamp, RefusesWhatItCannotRead) {
    for (const char* text : {"32:60", "32:60%", "32:0%,64", "32:101%,64", "32:x,64", "32,64",
                             "64:1,32", "32:1,32", "48:1,64", "32:1,48:1,64", "0:1,64", "32:%,64"})
        expect_error([&] { SeqRamp(text, 10); }, "--seq-ramp " + std::string(text));
}

// Samples before the cut are read like samples of the shorter length, with documents, too.
TEST(SeqRamp, CutSamplesAreShorterSamples) {
    test::TempDir dir;
    std::string text;
    for (int i = 0; i < 200; ++i) text += char('a' + i * i % 23);
    test::put(dir / "a.txt", text);
    const TokenFile file(dir / "a.txt", 256);
    for (const std::optional<int64_t> document : {std::optional<int64_t>(), {'d'}}) {
        const DataLoader whole(file, {.seq = 12, .document_token = document}),
            shorter(file, {.seq = 4, .document_token = document}),
            cut(file, {.seq = 12, .document_token = document, .cuts = {{6, 4}}});
        const HostBatch a = cut.batch(2, 4), b = shorter.batch(6, 12);
        EXPECT_EQ(a.sequences, 12);
        EXPECT_EQ(a.length, 4);
        EXPECT_EQ(a.first_sample, b.first_sample);
        EXPECT_EQ(a.tokens, b.tokens);
        EXPECT_EQ(a.targets, b.targets);
        EXPECT_EQ(a.positions, b.positions);
        EXPECT_EQ(a.document_starts, b.document_starts);
        EXPECT_EQ(a.counted_targets, cut.counted_targets(2, 4));
        EXPECT_EQ(a.tokens, whole.batch(2, 4).tokens);
        const HostBatch after = cut.batch(6, 2), plain = whole.batch(6, 2);
        EXPECT_EQ(after.positions, plain.positions);
        EXPECT_EQ(after.length, 12);
        EXPECT_THROW(cut.batch(5, 2), std::logic_error);
    }
}

}  // namespace
}  // namespace ultrascale
