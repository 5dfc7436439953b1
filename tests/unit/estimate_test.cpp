#include "lab/predict/estimate.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/test_util.h"
#include "train/data.h"

namespace ultrascale {
namespace {

TEST(ParameterCount, EqualsThePublishedNumbers) {
    const std::map<std::string, int64_t> published = {
        {"gpt2-124m", 124439808},    {"smollm-135m", 134515008},   {"smollm-360m", 361821120},
        {"smollm-1.7b", 1711376384}, {"llama-3.2-1b", 1235814400}, {"llama-2-7b", 6738415616},
        {"llama-3-8b", 8030261248},  {"llama-3-70b", 70553706496}, {"llama-3-405b", 405853388800}};
    for (const auto& [name, count] : published)
        EXPECT_EQ(parameter_count(preset(name)), count) << name;
    EXPECT_EQ(preset_names().size(),
              published.size() + 7);  // three nanos, small, char, two with experts
}

TEST(ParameterCount, EqualsTheModels) {
    for (const std::string& name : preset_names()) {
        LlamaConfig config = preset(name);
        if (config.experts.count > 0) continue;  // chapter 06 builds them
        config.layers =
            std::min<int64_t>(config.layers, 3);  // describing parameters allocates nothing
        Llama model(config, {});
        EXPECT_EQ(model.parameters().local_numel(), parameter_count(config)) << name;
    }
}

// Measures the peak of activation memory over a forward and backward of random tokens, as memory.h
// counts it.
int64_t measured_peak(const StepShape& shape) {
    const int64_t before = memory_now()[int(Memory::activation)];
    Llama model(shape.config, shape.model);
    model.parameters().allocate_values(shape.model.dtype);
    model.parameters().allocate_grads(shape.grad_dtype);
    model.parameters().initialize(1);
    HostBatch host{.sequences = shape.micro_batch,
                   .length = shape.seq,
                   .counted_targets = shape.micro_batch * shape.seq};
    for (int64_t i = 0; i < host.counted_targets; ++i) {
        host.tokens.push_back(int32_t(i * 7 % shape.config.vocab));
        host.targets.push_back(int32_t((i + 1) * 7 % shape.config.vocab));
        host.positions.push_back(int32_t(i % shape.seq));
    }
    const Batch batch = to_device(host);
    memory_reset_peak();
    {
        Context context{.batch = batch,
                        .token_weight = 1 / float(host.counted_targets),
                        .loss = Tensor::zeros({1}, DType::fp64, Memory::workspace)};
        Saved saved;
        model.forward({}, saved, context);
        model.backward({}, saved, context);
        EXPECT_EQ(memory_now()[int(Memory::activation)], before)
            << "backward left activations behind";
        EXPECT_EQ(memory_now()[int(Memory::parameter)], estimate_memory(shape).parameters);
        EXPECT_EQ(memory_now()[int(Memory::gradient)], estimate_memory(shape).gradients);
    }
    return memory_peak_by_category()[int(Memory::activation)] - before;
}

std::string describe(const StepShape& s) {
    const LlamaConfig& c = s.config;
    return fmt::format(
        "L {} h {} H {} K {} D {} F {} V {} tied {}, B {} T {}, {} grads {}, recompute {} "
        "attention {} chunk {}",
        c.layers, c.hidden, c.heads, c.kv_heads, c.head_dim, c.ffn, c.vocab, c.tied, s.micro_batch,
        s.seq, dtype_name(s.model.dtype), dtype_name(s.grad_dtype), s.model.recompute.text(),
        int(s.model.attention), s.model.loss_chunk);
}

// Checks all kinds of recomputation, attention, dtypes and loss chunks of one model, to the byte.
void expect_exact(StepShape s) {
    for (const Recompute& recompute : std::initializer_list<Recompute>{Recompute::none,
                                                                       Recompute::selective,
                                                                       Recompute::full,
                                                                       {1, 0},
                                                                       {1, 1},
                                                                       {0, 1},
                                                                       {3, 0}})
        for (AttentionKind attention : {AttentionKind::flash, AttentionKind::naive})
            for (int64_t chunk : {int64_t(0), int64_t(5), s.micro_batch * s.seq + 3}) {
                s.model.recompute = recompute;
                s.model.attention = attention;
                s.model.loss_chunk = chunk;
                EXPECT_EQ(measured_peak(s), estimate_memory(s).peak_activations) << describe(s);
            }
}

StepShape shape_of(LlamaConfig config, int64_t micro_batch, int64_t seq, DType dtype,
                   DType grad_dtype) {
    return {.config = config,
            .model = {.dtype = dtype},
            .grad_dtype = grad_dtype,
            .micro_batch = micro_batch,
            .seq = seq};
}

// In each of these models the peak is at a different moment of the step.
TEST(EstimateMemory, IsExactWhereverThePeakLies) {
    const LlamaConfig base{.layers = 2,
                           .hidden = 12,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 6,
                           .ffn = 10,
                           .vocab = 11};
    const auto with = [&](auto change) {
        LlamaConfig config = base;
        change(config);
        expect_exact(shape_of(config, 2, 9, DType::fp32, DType::fp32));
    };
    with([](LlamaConfig&) {});
    with([](LlamaConfig& c) { c.vocab = 501; });               // the loss
    with([](LlamaConfig& c) { c.ffn = 301; });                 // SwiGLU's backward
    with([](LlamaConfig& c) { c.ffn = 1, c.head_dim = 50; });  // attention's backward
    with([](LlamaConfig& c) {
        c.hidden = 201, c.ffn = 1, c.head_dim = 2;
    });  // wide, and little else
    with([](LlamaConfig& c) { c.heads = c.kv_heads = 30, c.head_dim = 2; });  // T x T probabilities
    with([](LlamaConfig& c) { c.layers = 1; });
    with([](LlamaConfig& c) { c.head_norms = true; });
    with([](LlamaConfig& c) { c.head_norms = true, c.ffn = 1, c.head_dim = 50; });
    with([](LlamaConfig& c) { c.layers = 7, c.kv_heads = 1, c.tied = true; });
}

TEST(EstimateMemory, IsExactForRandomSizes) {
    std::mt19937 generator(1);
    const auto draw = [&](int64_t most) {  // small numbers as often as large ones
        const double exponent = std::uniform_real_distribution<double>(0, 1)(generator);
        return std::max<int64_t>(1, int64_t(std::pow(double(most), exponent)));
    };
    for (int i = 0; i < 60; ++i) {
        LlamaConfig c{.layers = draw(4),
                      .hidden = draw(80),
                      .kv_heads = draw(4),
                      .ffn = draw(150),
                      .vocab = draw(300)};
        c.heads = c.kv_heads * draw(4);
        c.head_dim = 2 * draw(20);
        c.tied = i % 2 == 0;
        const DType dtype = i % 3 == 0 ? DType::fp32 : DType::bf16,
                    grad_dtype = i % 3 == 2 ? DType::bf16 : DType::fp32;
        expect_exact(shape_of(c, draw(4), draw(40), dtype, grad_dtype));
    }
}

TEST(EstimateMemory, BytesAParameter) {
    for (auto [dtype, grads, ours, book] : {std::tuple{DType::fp32, DType::fp32, 16, 16},
                                            {DType::bf16, DType::bf16, 16, 16},
                                            {DType::bf16, DType::fp32, 18, 20}}) {
        const StepShape shape = shape_of(preset("llama-3-405b"), 1, 8192, dtype, grads);
        const MemoryEstimate m = estimate_memory(shape);
        EXPECT_EQ(m.parameters + m.gradients + m.optimizer, ours * 405853388800);
        EXPECT_EQ(book_bytes_per_parameter(shape), book);
    }
}

TEST(EstimateMemory, RecomputationNeverCostsMemoryOfWholeLayers) {
    for (const char* name : {"llama-3.2-1b", "llama-3-8b", "llama-3-70b"}) {
        StepShape s = shape_of(preset(name), 1, 4096, DType::bf16, DType::fp32);
        s.model.attention = AttentionKind::naive;
        const int64_t none = estimate_memory(s).peak_activations;
        s.model.recompute = Recompute::selective;
        const int64_t selective = estimate_memory(s).peak_activations;
        s.model.recompute = Recompute::full;
        const int64_t full = estimate_memory(s).peak_activations;
        EXPECT_LT(selective, none);
        EXPECT_LT(full, selective);
    }
}

TEST(Book, Formulas) {
    // GPT-3 175B in Korthikanti et al. 2022 (L 96, h 12288, H 96, s 2048, b 1): 2.8 TB without
    // recomputation and 34 s b h L with selective recomputation.
    LlamaConfig c{.layers = 96,
                  .hidden = 12288,
                  .heads = 96,
                  .kv_heads = 96,
                  .head_dim = 128,
                  .ffn = 49152,
                  .vocab = 51200};
    StepShape s = shape_of(c, 1, 2048, DType::bf16, DType::fp32);
    const double sbhL = 2048.0 * 12288 * 96;
    EXPECT_DOUBLE_EQ(book_activations(s), sbhL * (34 + 80));
    s.model.recompute = Recompute::selective;
    EXPECT_DOUBLE_EQ(book_activations(s), sbhL * 34);
    s.model.recompute = Recompute::full;
    EXPECT_DOUBLE_EQ(book_activations(s), sbhL * 2);
}

TEST(Flops, PerToken) {
    const LlamaConfig c = preset("llama-3-8b");
    EXPECT_DOUBLE_EQ(model_flops_per_token(c, parameter_count(c), 4096),
                     6 * 8030261248.0 + 12.0 * 32 * 4096 * 4096);
    StepShape s = shape_of(c, 1, 4096, DType::bf16, DType::fp32);
    const double scores = 2.0 * 32 * 4096 * 4096;  // 2 L (H D) s: one of attention's two products
    s.model.attention = AttentionKind::naive;
    EXPECT_DOUBLE_EQ(recomputed_flops_per_token(s, parameter_count(c)), 0);
    s.model.recompute = Recompute::selective;
    EXPECT_DOUBLE_EQ(recomputed_flops_per_token(s, parameter_count(c)), 2 * scores);
    s.model.recompute =
        Recompute::full;  // the layers' forward again, without embedding, head and final norm
    EXPECT_DOUBLE_EQ(recomputed_flops_per_token(s, parameter_count(c)),
                     2.0 * (8030261248 - 2 * 128256 * 4096 - 4096) + 2 * scores);
    s.model.recompute = {4, 12};  // of 32 layers
    EXPECT_DOUBLE_EQ(recomputed_flops_per_token(s, parameter_count(c)),
                     2.0 * (8030261248 - 2 * 128256 * 4096 - 4096) * 4 / 32 + 2 * scores * 16 / 32);
    s.model = {.dtype = DType::bf16};
    EXPECT_DOUBLE_EQ(recomputed_flops_per_token(s, parameter_count(c)),
                     scores);  // flash: its backward computes the scores again
}

}  // namespace
}  // namespace ultrascale
