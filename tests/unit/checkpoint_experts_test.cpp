// Checkpoints with experts: config.json as transformers 4 and 5 write it, names, stacked experts.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/ops.h"
#include "files/checkpoint.h"
#include "tests/test_files.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

using nlohmann::json;
using ops::RouterScore;
using test::put;
using test::reference;
using test::TempDir;

json fields_of(const std::string& dir) { return json::parse(test::slurp(dir + "/config.json")); }

LlamaConfig config_with(json fields, const json& changes = json::object()) {
    TempDir dir;
    fields.update(changes);
    put(dir / "config.json", fields.dump());
    return load_config(dir.path());
}

void expect_refused(const json& fields, const json& changes, const std::string& message) {
    const std::string error = test::error_of([&] { config_with(fields, changes); });
    EXPECT_NE(error.find("config.json: "), std::string::npos) << error;
    EXPECT_NE(error.find(message), std::string::npos) << error << "\nwithout: " << message;
}

TEST(ExpertsConfig, OfMixtral) {
    const LlamaConfig c = load_config(reference("mixtral"));
    EXPECT_EQ(model_type(c), std::string("mixtral"));
    EXPECT_EQ(c.experts.count, 4);
    EXPECT_EQ(c.experts.ffn, 40);
    EXPECT_EQ(c.experts.router, (ops::RouterSettings{.top_k = 2}));
    EXPECT_EQ(c.experts.aux_coefficient, 0);  // output_router_logits is false
    EXPECT_FALSE(c.head_norms);
    EXPECT_EQ(c.rope_theta, 1e6);
    const json fields = fields_of(reference("mixtral"));
    EXPECT_EQ(config_with(fields, {{"output_router_logits", true}}).experts.aux_coefficient, 0.001);
    json without = fields;
    for (const char* name : {"rope_parameters", "rms_norm_eps"}) without.erase(name);
    EXPECT_EQ(config_with(without).rope_theta, 1e6);  // Mixtral's default, not Llama's
    EXPECT_EQ(config_with(without).norm_eps, 1e-5);
    without.erase("num_local_experts");
    expect_refused(without, json::object(),
                   "lacks the field \"num_local_experts\" (or "
                   "\"num_experts\")");
    expect_refused(fields, {{"num_local_experts", 0}}, "the number of experts = 0");
    expect_refused(fields, {{"num_local_experts", 5000}}, "the number of experts = 5000");
    expect_refused(fields, {{"num_experts_per_tok", 5}},
                   "num_experts_per_tok = 5 is not between 1 and 4");
    EXPECT_EQ(config_with(fields, {{"sliding_window", 128}}).window, 128);
    expect_refused(fields, {{"router_jitter_noise", 0.1}}, "router_jitter_noise = 0.1");
    expect_refused(fields, {{"architectures", {"LlamaForCausalLM"}}},
                   "architectures = [\"LlamaForCausalLM\"] is not supported");
}

// The loss that balances the experts' loads. It is transformers' own if the router's logits are an
// output. In DeepSeek's code aux_loss_alpha scales it; it is a loss of each sequence unless seq_aux
// is false.
TEST(ExpertsConfig, LossOfBalance) {
    const auto expect = [](const json& fields, const json& changes, double coefficient,
                           std::optional<Aux> aux) {
        SCOPED_TRACE(changes.dump());
        const ExpertsConfig e = config_with(fields, changes).experts;
        EXPECT_EQ(e.aux_coefficient, coefficient);
        EXPECT_EQ(e.aux, aux);
    };
    for (const char* name : {"mixtral", "qwen3_moe"}) {
        const json fields = fields_of(reference(name));
        expect(fields, {{"router_aux_loss_coef", 0.1}}, 0, {});
        expect(fields, {{"router_aux_loss_coef", 0.1}, {"output_router_logits", true}}, 0.1,
               Aux::hf);
    }
    const json deepseek{
        {"model_type", "deepseek"}, {"hidden_size", 64},        {"num_hidden_layers", 2},
        {"num_attention_heads", 4}, {"intermediate_size", 96},  {"vocab_size", 100},
        {"n_routed_experts", 8},    {"num_experts_per_tok", 2}, {"moe_intermediate_size", 24}};
    expect(deepseek, json::object(), 0.001, Aux::sequence);
    expect(deepseek, {{"aux_loss_alpha", 0.02}}, 0.02, Aux::sequence);
    expect(deepseek, {{"aux_loss_alpha", 0.02}, {"seq_aux", false}}, 0.02, Aux::megatron);
    expect(deepseek, {{"aux_loss_alpha", 0.0}}, 0, Aux::sequence);
    expect(deepseek, {{"topk_method", "noaux_tc"}}, 0, Aux::sequence);
    // as earlier versions of this project wrote it
    expect(deepseek, {{"output_router_logits", true}, {"router_aux_loss_coef", 0.3}}, 0.3, {});
}

TEST(ExpertsConfig, OfQwen3Moe) {
    const json fields = fields_of(reference("qwen3_moe"));
    json as_5 = fields;
    as_5.erase("num_experts"), as_5["num_local_experts"] = 8;
    for (const json& either : {fields, as_5}) {
        const LlamaConfig c = config_with(either);
        EXPECT_EQ(model_type(c), std::string("qwen3_moe"));
        EXPECT_EQ(c.experts.count, 8);
        EXPECT_EQ(c.experts.ffn, 24);
        EXPECT_EQ(c.ffn, 56);
        EXPECT_EQ(c.experts.first_dense, 1);
        EXPECT_FALSE(c.has_experts(0));
        EXPECT_TRUE(c.has_experts(1));
        EXPECT_EQ(c.experts.router, (ops::RouterSettings{.top_k = 3, .renormalise = false}));
        EXPECT_TRUE(c.head_norms);
    }
    EXPECT_TRUE(config_with(fields, {{"norm_topk_prob", true}}).experts.router.renormalise);
    expect_refused(fields, {{"mlp_only_layers", {1}}}, "mlp_only_layers = [1] is not supported");
    expect_refused(fields, {{"mlp_only_layers", 3}}, "mlp_only_layers = 3 is not supported");
    expect_refused(fields, {{"mlp_only_layers", {0, 1, 2, 3}}}, "first_k_dense_replace = 4");
    expect_refused(fields, {{"decoder_sparse_step", 2}}, "decoder_sparse_step = 2");
    expect_refused(fields, {{"moe_intermediate_size", 0}}, "moe_intermediate_size = 0");
}

// A config that is written and read again is the same, for each kind of names.
TEST(ExpertsConfig, WrittenAndReadAgain) {
    LlamaConfig qwen = load_config(reference("qwen3_moe")), shared = preset("nano-moe"),
                v3 = preset("nano-moe");
    qwen.experts.aux_coefficient = 0.5;
    shared.experts.shared = 2, shared.experts.first_dense = 1;
    v3.experts.router = {RouterScore::sigmoid, 3, 4, 2, true, 2.5};
    v3.experts.selection_bias = true, v3.experts.shared = 1;
    for (const auto& [c, type] :
         std::vector<std::pair<LlamaConfig, std::string>>{{preset("nano-moe"), "mixtral"},
                                                          {qwen, "qwen3_moe"},
                                                          {shared, "deepseek"},
                                                          {v3, "deepseek"},
                                                          {preset("moe-16b"), "deepseek"}}) {
        TempDir dir;
        put(dir / "config.json", config_json(c, DType::fp32));
        EXPECT_EQ(fields_of(dir.path())["model_type"], type);
        const LlamaConfig again = load_config(dir.path());
        EXPECT_EQ(config_json(again, DType::fp32), config_json(c, DType::fp32));
        EXPECT_EQ(again.experts.router, c.experts.router);
        EXPECT_EQ(again.experts.aux_coefficient, c.experts.aux_coefficient);
        for (const Aux aux : {Aux::hf, Aux::megatron, Aux::sequence}) {
            LlamaConfig with_loss = c;
            with_loss.experts.aux = aux, with_loss.experts.aux_coefficient = 0.25;
            put(dir / "config.json", config_json(with_loss, DType::fp32));
            const ExpertsConfig e = load_config(dir.path()).experts;
            // Mixtral and Qwen 3 have code for one loss, DeepSeek for the others.
            if ((type == "deepseek") != (aux != Aux::hf)) continue;
            EXPECT_EQ(e.aux, aux);
            EXPECT_EQ(e.aux_coefficient, 0.25);
        }
        EXPECT_EQ(again.experts.selection_bias, c.experts.selection_bias);
        EXPECT_EQ(again.head_norms, c.head_norms);
        EXPECT_EQ(parameter_count(again), parameter_count(c));
    }
}

TEST(ExpertsConfig, WhatDoesNotGoTogether) {
    const auto error = [](const std::function<void(LlamaConfig&)>& change) {
        LlamaConfig c = preset("nano-moe");
        change(c);
        return test::error_of([&] { validate(c); });
    };
    const auto has = [](const std::string& all, const char* part) {
        EXPECT_NE(all.find(part), std::string::npos) << all << "\nwithout: " << part;
    };
    EXPECT_NO_THROW(validate(preset("nano-moe")));
    has(error([](auto& c) { c.experts.router.groups = 3; }),
        "8 experts do not divide into n_group");
    has(error([](auto& c) { c.experts.router.groups = c.experts.router.top_k = 8; }),
        "topk_group = 1 of 8 groups have only 1 experts");
    has(error([](auto& c) { c.experts.router.scaling = 0; }), "routed_scaling_factor = 0");
    has(error([](auto& c) { c.experts.aux_coefficient = -1; }), "router_aux_loss_coef = -1");
    has(error([](auto& c) { c.head_norms = true, c.experts.shared = 1; }), "go only with Qwen 3's");
    has(error([](auto& c) { c.head_norms = true, c.experts = {}; }), "go only with Qwen 3's");
}

// The published numbers: 16.4 billion parameters, of which a token uses 2.8.
TEST(ExpertsConfig, ParametersOfDeepSeekMoe16B) {
    EXPECT_EQ(parameter_count(preset("moe-16b")), 16'375'728'128);
    EXPECT_EQ(active_parameter_count(preset("moe-16b")), 2'828'650'496);
}

// A model has the same values whether its file stacks the experts of a layer in two tensors or
// holds each expert by itself, under either kind of names.
TEST(ExpertsCheckpoint, StackedExpertsAreReadUnderBothNames) {
    const std::string dir = reference("qwen3_moe"), stack = "model.layers.1.mlp.experts.";
    const Safetensors file = Safetensors::directory(dir);
    ASSERT_EQ(file.entries().at(stack + "gate_up_proj").shape, (Shape{8, 48, 32}));
    const Tensor gate_up = Tensor::zeros({8, 48, 32}, DType::fp32, Memory::parameter),
                 down = Tensor::zeros({8, 32, 24}, DType::fp32, Memory::parameter);
    file.read(stack + "gate_up_proj", gate_up.shape(), {}, gate_up);
    file.read(stack + "down_proj", down.shape(), {}, down);
    for (const auto& [block, gate, up, last] :
         {std::array{"mlp", "gate_proj", "up_proj", "down_proj"},
          std::array{"block_sparse_moe", "w1", "w3", "w2"}})
        for (const int64_t e : {0, 3, 7}) {
            const auto read = [&](const char* matrix, Shape shape) {
                const Tensor to = Tensor::zeros(shape, DType::fp32, Memory::parameter);
                load_parameters(
                    dir, {{fmt::format("model.layers.1.{}.experts.{}.{}.weight", block, e, matrix),
                           to}});
                return to_double(to);
            };
            const Tensor expert_weights = gate_up.slice(e, e + 1).view({48, 32});
            EXPECT_EQ(read(gate, {24, 32}), to_double(expert_weights.slice(0, 24)));
            EXPECT_EQ(read(up, {24, 32}), to_double(expert_weights.slice(24, 48)));
            EXPECT_EQ(read(last, {32, 24}), to_double(down.slice(e, e + 1)));
        }
    const auto router = [&](const char* block) {
        const Tensor to = Tensor::zeros({8, 32}, DType::fp32, Memory::parameter);
        load_parameters(dir, {{fmt::format("model.layers.2.{}.gate.weight", block), to}});
        return to_double(to);
    };
    EXPECT_EQ(router("mlp"), router("block_sparse_moe"));
    test::expect_error([&] { router("other"); },
                       "has no tensor \"model.layers.2.other.gate.weight\"");
    const Tensor wrong = Tensor::zeros({25, 32}, DType::fp32, Memory::parameter);
    test::expect_error(
        [&] {
            load_parameters(dir, {{"model.layers.1.mlp.experts.0.up_proj.weight", wrong}});
        },
        "has shape (24, 32), but the model needs (25, 32)");
}

// A router's bias is a state of the training here, but a weight for Hugging Face. A run that loads
// only the weights has it, too.
TEST(ExpertsCheckpoint, ARoutersBiasIsAmongTheWeights) {
    const std::string name = "model.layers.1.mlp.gate.e_score_correction_bias";
    const auto list = [&](ParameterList& parameters) {
        parameters.add({.name = "model.norm.weight", .shape = {8}, .init = Init::ones});
        parameters.allocate_values(DType::fp32);
        parameters.initialize(1);
        return parameters.add_buffer(name, 4);
    };
    ParameterList saved, loaded;
    ops::copy(list(saved), tensor_of({0.5, -1, 2, 0}, {4}, DType::fp32));
    const Tensor bias = list(loaded);
    TempDir dir;
    const TrainingState state{.step = 1};
    save_checkpoint(dir.path(), preset("nano-moe"), saved,
                    {.state = &state, .optimizer = saved.buffers()});
    EXPECT_TRUE(Safetensors::directory(dir.path()).contains(name));
    load_parameters(dir.path(), loaded);
    EXPECT_EQ(to_double(bias), (Doubles{0.5, -1, 2, 0}));
    save_checkpoint(dir.path(), preset("nano-moe"), saved);  // weights without their state
    ops::fill(bias, 7);
    load_parameters(dir.path(), loaded);
    EXPECT_EQ(to_double(bias), Doubles(4, 7));  // unchanged
}

}  // namespace
}  // namespace ultrascale
