// The formulas that 00_single_gpu and 02_zero print, compared with published numbers, and with the
// model, the estimate and ZeRO's own prediction.
#include "02_zero/lab/formulas.h"

#include <gtest/gtest.h>

#include "00_single_gpu/lab/formulas_demo.h"
#include "00_single_gpu/lab/predict.h"
#include "02_zero/lab/predict.h"
#include "comm/comm.h"

namespace ultrascale {
using namespace ultrascale::single_gpu;
using namespace ultrascale::zero;
namespace {

TEST(GptFormulas, AreThePublishedNumbers) {
    const double h = 12288;
    EXPECT_EQ(sum_of(gpt_layer_parameters(h)), 12 * h * h + 13 * h);
    EXPECT_NEAR(gpt_parameters(gpt3) / 1e9, 175, 0.5);
    // Brown et al. 2020, table 2.1: GPT-3 XL.
    EXPECT_NEAR(gpt_parameters({.layers = 24, .hidden = 2048, .heads = 24, .vocab = 50257}) / 1e9,
                1.3, 0.05);
    const Selective s = selective_recomputation(gpt3, 2048);
    EXPECT_EQ(s.linear, 34);
    EXPECT_EQ(s.squared, 80);
    EXPECT_NEAR(s.saved(), 0.70, 0.005);  // Korthikanti et al. 2022, section 5
    EXPECT_NEAR(s.attention_share, 0.027, 0.0005);
    EXPECT_DOUBLE_EQ(3 * s.added, s.attention_share);
    const StepShape shape{.config = {.layers = 96, .hidden = 12288, .heads = 96},
                          .model = {},
                          .micro_batch = 1,
                          .seq = 2048};
    EXPECT_DOUBLE_EQ(book_activations(shape), 96 * (s.linear + s.squared) * 2048 * h);
}

// A GPT's attention in the units of selective_recomputation() agrees with the model's FLOPs.
TEST(GptFormulas, AttentionsShareIsTheEstimates) {
    LlamaConfig c = preset("llama-2-7b");
    const double all = model_flops_per_token(c, 0, 2048),  // attention alone
        linears = 6 * 12.0 * double(c.hidden) * double(c.hidden) * double(c.layers),
                 head = 6 * double(c.vocab) * double(c.hidden);
    const Selective s = selective_recomputation(
        {.layers = c.layers, .hidden = c.hidden, .heads = c.heads, .vocab = c.vocab}, 2048);
    EXPECT_NEAR(s.attention_share, all / (all + linears + head), 1e-12);
}

// The formula for a GPT's layer and the one for our layers count the same tensors.
TEST(KeptOfToken, IsTheGptsFormulaAndTheStatistics) {
    const LlamaConfig c = preset("gpt2-124m");
    const KeptOfToken k = kept_of_token(c,
                                        {.dtype = DType::bf16,
                                         .attention = AttentionKind::naive,
                                         .dropout = 0.1,
                                         .keep_masks = true},
                                        1024);
    const Selective s = selective_recomputation(
        {.layers = c.layers, .hidden = c.hidden, .heads = c.heads, .vocab = c.vocab}, 1024);
    const double h = double(c.hidden), statistics = 2 * 2 * 4;
    EXPECT_DOUBLE_EQ(k.linear(), s.linear * h + statistics);
    EXPECT_DOUBLE_EQ(k.squared, s.squared * h);
    EXPECT_DOUBLE_EQ(k.attention, (2 + 4 + 2 + 1) * h);  // q, k, v, o, a mask
    EXPECT_DOUBLE_EQ(k.feed_forward, (8 + 8 + 1) * h);
}

TEST(KeptOfToken, CountsLlamasGroupsAndExperts) {
    const ModelOptions squares{.dtype = DType::bf16, .attention = AttentionKind::naive};
    const KeptOfToken llama = kept_of_token(preset("llama-3-8b"), squares, 2048);
    EXPECT_EQ(llama.norms, 4 * 2 * 4096 + 8);
    EXPECT_EQ(llama.attention, 2 * (2 * 4096 + 2 * 1024));
    EXPECT_EQ(llama.squared, 2 * 32 * 2048);
    EXPECT_EQ(llama.feed_forward, 2 * 2 * 14336);
    const KeptOfToken tiles = kept_of_token(preset("llama-3-8b"), {.dtype = DType::bf16}, 8192);
    EXPECT_EQ(tiles.squared, 0);
    EXPECT_EQ(tiles.attention, llama.attention + 4 * 32);
    // k (h + 2 F_e) numbers and the shared experts' 2 F_s; scores, choices and weights.
    const KeptOfToken experts = kept_of_token(preset("moe-16b"), squares, 8192);
    EXPECT_EQ(experts.feed_forward,
              2 * (6 * (2048 + 2 * 1408) + 2 * 2 * 1408) + 4 * 64 + 8 * 6 + 4 * 6);
    EXPECT_EQ(experts.squared, 2 * 16 * 8192);
    EXPECT_EQ(experts.attention, 2 * 4 * 2048);
}

TEST(BatchFormulas, FourStepsAndDoubling) {
    EXPECT_EQ(accumulation_steps(1024, 2, 128), 4);
    EXPECT_EQ(accumulation_steps(1024, 2, 512), 1);
    EXPECT_EQ(accumulation_steps(1024, 2, 100), 0);
    for (double loss : {4.0, 2.5, 1.8}) {
        EXPECT_NEAR(loss_of_critical_batch(critical_batch(loss)), loss, 1e-9);
        EXPECT_NEAR(critical_batch(loss * std::pow(2, -0.21)), 2 * critical_batch(loss),
                    1e-6 * critical_batch(loss));
    }
}

TEST(LatentAttention, IsDeepSeekV3s) {
    const LatentAttention& a = deepseek_v3;
    EXPECT_EQ(a.q(), 24576);
    EXPECT_EQ(a.latents(), 1536 + 576);
    EXPECT_EQ(a.weights(), 7168 * 2112 + 1536 * 24576 + 512 * 32768 + 16384 * 7168);
    EXPECT_EQ(kept_plain(a, 128), 4 * 16384);
    EXPECT_LT(a.kept_latent(), kept_plain(a, 8));
    EXPECT_GT(a.kept(), kept_plain(a, 128));  // kept whole, latents save nothing
}

// --fresh-grads saves nothing if the activations are very small. If they are much larger than the
// gradients, it saves all gradients except the head's and one layer's.
TEST(FreshGradients, SaveWhatDoesNotExistYet) {
    StepShape shape{.config = preset("nano"), .model = {}, .micro_batch = 64, .seq = 128};
    const LlamaConfig& c = shape.config;
    const MemoryEstimate m = estimate_memory(shape);
    const int64_t head = 4 * (c.vocab * c.hidden + c.hidden),
                  layer = (m.gradients - head - 4 * c.vocab * c.hidden) / c.layers;
    EXPECT_EQ(predicted_activations_and_gradients(shape, 1), m.peak_activations + head + layer);
    EXPECT_EQ(predicted_activations_and_gradients(shape, 2), m.peak_activations + m.gradients);
    shape.micro_batch = shape.seq = 1;
    EXPECT_EQ(predicted_activations_and_gradients(shape, 1), m.gradients + 4 * c.hidden);
}

// tp ranks together hold the model once, but its norms tp times.
TEST(ZeroFormulas, TensorParallelRanksShareOutTheModel) {
    for (const char* name : {"smollm-1.7b", "llama-3-8b", "llama-3-70b"}) {
        const LlamaConfig c = preset(name);
        const double norms = double((2 * c.layers + 1) * c.hidden), n = double(parameter_count(c));
        EXPECT_DOUBLE_EQ(parameters_with_tp(c, 1), n);
        for (int64_t tp : {2, 4, 8})
            EXPECT_DOUBLE_EQ(double(tp) * parameters_with_tp(c, tp), n + double(tp - 1) * norms);
    }
}

// On one rank ZeRO's own prediction differs only by its padding.
TEST(ZeroFormulas, AreWhatEachStagePredicts) {
    const StepShape shape{.config = preset("nano"),
                          .model = {.dtype = DType::bf16},
                          .grad_dtype = DType::bf16,
                          .micro_batch = 1,
                          .seq = 16};
    const Communicator& world = Communicator::world();
    const Mesh mesh(world, {{"dp", world.size()}});
    for (int stage = 0; stage <= 3; ++stage) {
        const Llama model(shape.config, shape.model);
        const MemoryEstimate m = predict(model, {.stage = stage}, shape, 1, mesh).memory;
        const RankBytes b = rank_bytes(shape.config, 1, world.size(), stage);
        EXPECT_NEAR(double(m.parameters), b.parameters, 1e-3 * b.parameters);
        EXPECT_NEAR(double(m.gradients), b.gradients, 1e-3 * b.gradients);
        EXPECT_NEAR(double(m.optimizer), b.optimizer, 1e-3 * b.optimizer);
    }
}

TEST(ZeroFormulas, OverlapCountsTokensOnly) {
    const Overlap few = overlap_of_zero(1e15, 50e9, 8192, 64);
    EXPECT_NEAR(few.zero3, 63.0 / 64 * 1e15 / (50e9 * 8192), 1e-12);
    EXPECT_NEAR(overlap_of_zero(1e15, 50e9, 8192 * few.zero3, 64).zero3, 1, 1e-12);
    EXPECT_DOUBLE_EQ(few.zero1_backward + few.zero1_backward, few.data_parallel);
    // The playbook's layer has 16 h^2 parameters: (t-1) F / (4 h w).
    const LlamaConfig c{.layers = 1,
                        .hidden = 1024,
                        .heads = 8,
                        .kv_heads = 8,
                        .head_dim = 128,
                        .ffn = 4096,
                        .vocab = 8};
    EXPECT_NEAR(overlap_of_tensor_parallelism(c, 1e15, 50e9, 8), 7 * 1e15 / (4 * 1024 * 50e9),
                0.01 * 34);
}

// A bound that is wider than the narrow format requires would hide a fault of the run.
TEST(ZeroBounds, AreAsWideAsTheFewestBitsThatTravel) {
    const VerifyBounds bounds = verify_bounds(DType::fp32);
    const auto with = [&](Sent gathers, Sent sums) {
        ZeroOptions zero;
        zero.stage = 3, zero.gathers = gathers, zero.sums = sums;
        return bounds_of(zero, bounds);
    };
    EXPECT_EQ(with(Sent::plain, Sent::plain).gradient, bounds.gradient);
    for (const auto& [gathers, sums] : {std::pair{Sent::bf16, Sent::plain},
                                        {Sent::plain, Sent::bf16},
                                        {Sent::bf16, Sent::bf16}}) {
        EXPECT_EQ(with(gathers, sums).gradient, 2e-3);
        EXPECT_EQ(with(gathers, sums).first_loss, bounds.first_loss);
    }
    EXPECT_EQ(with(Sent::fp8, Sent::plain).gradient, 0.15);
    EXPECT_EQ(with(Sent::plain, Sent::fp8).gradient, 0.15);
    EXPECT_EQ(with(Sent::plain, Sent::fp8).first_loss, bounds.first_loss);
    EXPECT_EQ(with(Sent::fp8, Sent::plain).first_loss, 3e-3);
}

}  // namespace
}  // namespace ultrascale
