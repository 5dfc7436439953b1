// 08_mixed_precision's recipes: their bytes are the playbook's, and storage holds what its formula
// says.
#include <gtest/gtest.h>

#include "08_mixed_precision/predict.h"

namespace ultrascale {
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
        const Recipe rest = recipe.of_rest();
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

TEST(PrecisionRecipes, NeighboursInTheModelAreNeighboursInMemory) {
    PrecisionOptions o{.recipe = *find_recipe("deepseek")};
    MixedTraining training(config, {.dtype = DType::bf16}, o, {});
    const std::span<Storage::Held> linears = training.storage.linears();
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
