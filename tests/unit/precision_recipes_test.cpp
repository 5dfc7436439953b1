// 08_mixed_precision's recipes: their bytes are the playbook's, and storage holds what its formula
// says.
#include <gtest/gtest.h>

#include "08_mixed_precision/lab/predict.h"
#include "core/device.h"
#include "tests/test_util.h"
#include "train/data.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
namespace {

const LlamaConfig config{
    .layers = 2, .hidden = 48, .heads = 4, .kv_heads = 2, .head_dim = 16, .ffn = 80, .vocab = 61};

TEST(PrecisionRecipes, BytesAreThePlaybooks) {
    const std::map<std::string, std::pair<int64_t, double>> table = {
        {"bf16", {16, 16}}, {"bf16-fp32", {18, 20}}, {"te", {16, 16}},
        {"fp8-lm", {9, 9}}, {"deepseek", {15, 15}},  {"nanotron", {10, 10}}};
    for (const auto& [name, bytes] : table) {
        const Recipe* recipe = find_recipe(name);
        ASSERT_TRUE(recipe) << name;
        EXPECT_EQ(bytes_per_parameter(*recipe), bytes.first) << name;
        EXPECT_EQ(recipe->book_bytes, bytes.second) << name;
    }
    EXPECT_EQ(find_recipe("fp4"), nullptr);
}

TEST(PrecisionRecipes, WhatIsNoLinearStaysOutOfFp8) {
    for (const Recipe& recipe : all_recipes()) {
        const Recipe rest = recipe.rest_recipe();
        EXPECT_EQ(rest.weights, recipe.activations) << recipe.name;
        EXPECT_FALSE(rest.gradients && is_fp8(*rest.gradients)) << recipe.name;
        EXPECT_TRUE(rest.master || rest.weights == DType::fp32) << recipe.name;
    }
}

TEST(PrecisionRecipes, TricksThatARecipeDoesWithout) {
    Recipe fp16 = *find_recipe("fp16");
    EXPECT_TRUE(leave_out(fp16, "master"));
    EXPECT_FALSE(leave_out(fp16, "master"));  // it is gone already
    EXPECT_TRUE(leave_out(fp16, "scaling"));
    EXPECT_TRUE(leave_out(fp16, "accumulation"));
    EXPECT_EQ(bytes_per_parameter(fp16), 2 + 2 + 4 + 4);
    EXPECT_EQ(fp16.sum(), DType::fp16);
    Recipe deepseek = *find_recipe("deepseek");
    for (const char* trick : {"master", "scaling", "accumulation", "wheels"})
        EXPECT_FALSE(leave_out(deepseek, trick)) << trick;
}

// Every recipe, and what the options change of it.
std::vector<PrecisionOptions> choices() {
    std::vector<PrecisionOptions> all;
    for (const Recipe& recipe : all_recipes()) {
        PrecisionOptions o{.recipe = recipe};
        o.loss_scale.scaled = recipe.loss_scale;
        o.history = 7;
        all.push_back(o);
        for (const char* trick : {"master", "scaling", "accumulation"}) {
            PrecisionOptions without = o;
            if (!leave_out(without.recipe, trick)) continue;
            without.loss_scale.scaled = without.recipe.loss_scale;
            all.push_back(without);
        }
    }
    PrecisionOptions smooth = all.back();
    smooth.recipe = *find_recipe("te");
    smooth.smooth = true;
    all.push_back(smooth);
    return all;
}

TEST(PrecisionRecipes, StorageHoldsWhatItsFormulaSays) {
    for (const bool tied : {false, true})
        for (const PrecisionOptions& o : choices()) {
            SCOPED_TRACE(o.recipe.name);
            LlamaConfig model = config;
            model.tied = tied;
            const StepShape shape{.config = model,
                                  .model = {.dtype = o.recipe.activations},
                                  .micro_batch = 1,
                                  .seq = 16};
            const MemoryByCategory before = memory_now();
            const MixedTraining training(model, shape.model, o, {});
            const MemoryByCategory after = memory_now();
            const MemoryEstimate want = predict_memory(shape, o).memory;
            const auto held = [&](Memory m) { return after[int(m)] - before[int(m)]; };
            EXPECT_EQ(held(Memory::parameter), want.parameters);
            EXPECT_EQ(held(Memory::gradient), want.gradients);
            EXPECT_EQ(held(Memory::optimizer), want.optimizer);
        }
}

struct OneMicroBatch {
    std::vector<Doubles> gradients;    // as they are sent
    std::set<std::string> not_summed;  // the parameters whose sums stayed zero
};
// `in_sums`: all gradients are added to the sums first, as several micro-batches' are.
OneMicroBatch train_one(const LlamaConfig& model, int64_t loss_chunk, bool in_sums) {
    PrecisionOptions o{.recipe = *find_recipe("deepseek")};
    o.gradient_format = DType::e4m3;
    MixedTraining training(model, {.dtype = DType::bf16, .loss_chunk = loss_chunk}, o, {});
    training.start();
    const TokenFile file("common/text.txt", model.vocab);
    const DataLoader loader(file, {.seq = 32});
    training.model.parameters().begin_gradients();
    training.storage.begin_step();
    if (in_sums)
        for (Storage::StoredParameter& h : training.storage.all()) h.parameter->grad = h.sum();
    Context context{.token_weight = 1.0F / 32};
    context.loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
    context.batch = to_device(loader.batch(0, 1));
    Saved saved;
    training.model.forward({}, saved, context);
    training.model.backward({}, saved, context);
    training.storage.round_gradients();
    OneMicroBatch result;
    for (const Storage::StoredParameter& h : training.storage.all()) {
        result.gradients.push_back(to_double(h.read()));
        if (std::ranges::all_of(to_double(h.accumulated), [](double x) { return x == 0; }))
            result.not_summed.insert(h.parameter->name);
    }
    return result;
}

TEST(PrecisionRecipes, AnOnlyMicroBatchWritesItsGradientsRounded) {
    const std::string embedding = "model.embed_tokens.weight", head = "lm_head.weight";
    for (const bool tied : {false, true})
        for (const int64_t loss_chunk : {0, 16}) {
            LlamaConfig model = config;
            model.tied = tied, model.vocab = 256;
            const OneMicroBatch at_once = train_one(model, loss_chunk, false),
                                summed = train_one(model, loss_chunk, true);
            ASSERT_EQ(at_once.gradients.size(), summed.gradients.size());
            for (size_t i = 0; i < summed.gradients.size(); ++i)
                EXPECT_LE(relative_error(at_once.gradients[i], summed.gradients[i]),
                          device_is_gpu() ? 1e-3 : 0);
            EXPECT_TRUE(summed.not_summed.empty());
            // A tied weight's gradient has two terms, that of a head in chunks several.
            EXPECT_EQ(at_once.not_summed.contains(embedding), !tied);
            EXPECT_EQ(at_once.not_summed.contains(head), !tied && loss_chunk == 0);
            EXPECT_TRUE(at_once.not_summed.contains("model.layers.0.mlp.down_proj.weight"));
        }
}

TEST(PrecisionRecipes, NeighboursInTheModelAreNeighboursInMemory) {
    PrecisionOptions o{.recipe = *find_recipe("deepseek")};
    MixedTraining training(config, {.dtype = DType::bf16}, o, {});
    const std::span<Storage::StoredParameter> linears = training.storage.linears();
    ASSERT_EQ(linears.size(), 14u);
    EXPECT_EQ(linears[1].parameter->name, "model.layers.0.self_attn.k_proj.weight");
    for (size_t i = 0; i + 1 < linears.size(); ++i) {
        const auto end = [](const Tensor& t) { return static_cast<char*>(t.data()) + t.bytes(); };
        EXPECT_EQ(end(linears[i].value), linears[i + 1].value.data());
        EXPECT_EQ(end(linears[i].master), linears[i + 1].master.data());
        EXPECT_EQ(end(linears[i].accumulated), linears[i + 1].accumulated.data());
    }
}

}  // namespace
}  // namespace ultrascale
