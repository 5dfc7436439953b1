// The formula for the peak of activation memory in cases that a single device cannot measure
// (estimate_test.cpp measures the single-device case).
#include "lab/predict/activations.h"

#include <gtest/gtest.h>

#include "lab/predict/estimate.h"

namespace ultrascale {
namespace {

const LlamaConfig config{
    .layers = 4, .hidden = 64, .heads = 8, .kv_heads = 4, .head_dim = 8, .ffn = 192, .vocab = 256};

LocalSizes sizes_of(const LlamaConfig& c) {
    return local_sizes({.config = c, .model = {}, .micro_batch = 2, .seq = 32});
}
std::string highest(const LlamaConfig& c) { return activation_peak(sizes_of(c)).when; }

TEST(Activations, TheMomentDependsOnTheSizes) {
    LlamaConfig c = config;
    EXPECT_EQ(highest(c), "in the backward of SwiGLU");
    c.vocab = 4096;
    EXPECT_EQ(highest(c), "in the backward of the output head");
    c = config, c.ffn = 1, c.head_dim = 50;
    EXPECT_EQ(highest(c), "in the backward of attention");
}

// One rank of a tensor-parallel group of 4 (dtype fp32, B 2, T 32), computed by hand: each number
// below is stored for 64 tokens in 4 bytes.
TEST(Activations, OfATensorParallelRank) {
    LocalSizes s = sizes_of(config);
    s.heads = 2, s.kv_heads = 1, s.features = 48, s.vocabulary = 64, s.loss_parts = 4;
    const int64_t row = 4 * 64;  // one number per token
    // norms: x and input of 64 numbers and rstd, twice; q, o 16 each, k, v 8 each, 2 log-sum-exps;
    // gate, up 48 each
    const int64_t layer = 2 * (64 + 64 + 1) + (2 * 16 + 2 * 8 + 2) + 2 * 48;
    EXPECT_EQ(int64_t(layer_activations(s).total()), layer * row);
    // In the loss: x and output of the final norm, rstd, logits, the loss, and 3 numbers from each
    // of 4 ranks. The head's backward has dx instead of these numbers; SwiGLU's backward one
    // layer's dy and 3 F.
    EXPECT_EQ(peak_activation_bytes(s), (4 * layer + 64 + 64 + 1 + 64 + 64) * row);

    // With sequence parallelism a rank holds 16 numbers per token of the residual stream, and a
    // quarter of rstd.
    s.stream_tokens /= 4;
    const int64_t shards = (4 * (2 * (16 + 16) + (2 * 16 + 2 * 8 + 2) + 2 * 48) + 2) * row;
    // SwiGLU's backward, in 4 layers: dy, gathered dy, 3 F.
    EXPECT_EQ(peak_activation_bytes(s), shards + (16 + 64 + 3 * 48) * row);
    // Each layer keeps two gathered inputs. The peak is in the head's backward, which keeps one,
    // too: the final norm's x and rstd, its gathered output, logits, dx whole and scattered.
    s.keeps_gathered = true;
    EXPECT_EQ(peak_activation_bytes(s),
              shards + 4 * 2 * (64 - 16) * row + (16 + 64 + 64 + 64 + 16) * row + row / 4);
}

TEST(Activations, OfAPipelinesRanks) {
    LocalSizes s = sizes_of(config);
    s.layers = 2, s.head = false;
    const int64_t one_micro_batch = peak_activation_bytes(s);
    s.micro_batches = 5;
    EXPECT_EQ(peak_activation_bytes(s),
              one_micro_batch + 4 * 2 * int64_t(layer_activations(s).total()));
    s.model.recompute = Recompute::full;  // the other four layers keep only their inputs
    const ActivationMoment peak = activation_peak(s);
    EXPECT_EQ(peak.terms.front().second, 4 * 2 * 64 * 4.0 * 64);
    EXPECT_EQ(peak.when, "in the backward of SwiGLU");
    // A rank without layers still holds the activations that flow through it.
    s.layers = 0, s.micro_batches = 1;
    EXPECT_EQ(peak_activation_bytes(s), 64 * 4 * 64);
    s.embedding = false;
    EXPECT_EQ(peak_activation_bytes(s), 0);
}

TEST(Activations, OfSizesThatFitNowhere) {
    LocalSizes s = sizes_of(config);
    s.sequences = 10'000'000, s.seq = s.stream_tokens = s.region_tokens = 1'000'000'000'000;
    EXPECT_EQ(peak_activation_bytes(s), int64_t(9e18));
}

}  // namespace
}  // namespace ultrascale
