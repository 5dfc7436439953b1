// config.json: what load_config reads and what it refuses.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "files/checkpoint.h"
#include "tests/test_files.h"

namespace ultrascale {
namespace {

using nlohmann::json;
using test::expect_error;
using test::put;
using test::TempDir;

json minimal() {
    return {{"model_type", "llama"},    {"hidden_size", 64},       {"num_hidden_layers", 2},
            {"num_attention_heads", 4}, {"intermediate_size", 96}, {"vocab_size", 100}};
}

LlamaConfig config_of(const json& value) {
    TempDir dir;
    put(dir / "config.json", value.dump());
    return load_config(dir.path());
}

LlamaConfig config_with(const json& changes) {
    json value = minimal();
    value.update(changes);
    return config_of(value);
}

void expect_refused(const json& changes, const std::string& message) {
    const std::string error = test::error_of([&] { config_with(changes); });
    EXPECT_NE(error.find("config.json: "), std::string::npos) << error;
    EXPECT_NE(error.find(message), std::string::npos) << error << "\nwithout: " << message;
}

TEST(Config, DefaultsAreThoseOfTransformers) {
    LlamaConfig c = config_of(minimal());
    EXPECT_EQ(c.kv_heads, 4);
    EXPECT_EQ(c.head_dim, 16);
    EXPECT_FALSE(c.tied);
    EXPECT_EQ(c.rope_theta, 10000);
    EXPECT_EQ(c.norm_eps, 1e-6);
    EXPECT_EQ(c.init_std, 0.02);
    EXPECT_EQ(c.max_positions, 2048);
    EXPECT_EQ(c.default_seq, 2048);
    EXPECT_EQ(c.rope_scaling.type, RopeScaling::Type::none);
}

// Without the field, Mixtral and Qwen3-MoE have a default number of key heads; null means as many
// as heads.
TEST(Config, DefaultsOfModelsWithExperts) {
    const json mixtral{{"model_type", "mixtral"},
                       {"num_attention_heads", 16},
                       {"num_local_experts", 4},
                       {"num_experts_per_tok", 2}};
    EXPECT_EQ(config_with(mixtral).kv_heads, 8);
    EXPECT_EQ(config_with(mixtral).max_positions, 131072);
    json qwen = mixtral;
    qwen.update({{"model_type", "qwen3_moe"}, {"moe_intermediate_size", 24}});
    EXPECT_EQ(config_with(qwen).kv_heads, 4);
    EXPECT_EQ(config_with(qwen).max_positions, 32768);
    for (json null : {mixtral, qwen}) {
        null["num_key_value_heads"] = nullptr;
        EXPECT_EQ(config_with(null).kv_heads, 16);
        null["num_key_value_heads"] = 2;
        EXPECT_EQ(config_with(null).kv_heads, 2);
    }
}

// Every field that is not understood is named, unless it cannot change the model.
TEST(Config, NamesWhatItDoesNotUnderstand) {
    const auto unknown_in = [](const json& changes) {
        json value = minimal();
        value.update(changes);
        TempDir dir;
        put(dir / "config.json", value.dump());
        std::vector<std::string> unknown;
        load_config(dir.path(), &unknown);
        return unknown;
    };
    using Names = std::vector<std::string>;
    EXPECT_EQ(unknown_in(json::object()), Names());
    EXPECT_EQ(unknown_in({{"logit_scale", 0.5}, {"qk_norm", true}, {"residual_scale", nullptr}}),
              (Names{"logit_scale", "qk_norm"}));
    // as in the published SmolLM and Llama 3
    EXPECT_EQ(unknown_in({{"_name_or_path", "x"},
                          {"eos_token_id", {1, 2}},
                          {"is_llama_config", true},
                          {"pretraining_tp", 1},
                          {"rope_interleaved", false},
                          {"rope_scaling", nullptr},
                          {"torch_dtype", "bfloat16"},
                          {"transformers_version", "4.40.1"},
                          {"use_cache", true}}),
              Names());
    EXPECT_EQ(unknown_in({{"rope_interleaved", true}}), Names{"rope_interleaved"});
    EXPECT_EQ(unknown_in({{"rope_parameters",
                           {{"rope_type", "default"}, {"rope_theta", 1e4}, {"mscale", 2}}}}),
              Names{"rope_parameters.mscale"});
    // Everything that this project writes is understood.
    for (const std::string& name : preset_names()) {
        TempDir dir;
        put(dir / "config.json", config_json(preset(name), DType::fp32));
        std::vector<std::string> unknown;
        load_config(dir.path(), &unknown);
        EXPECT_EQ(unknown, Names()) << name;
    }
}

TEST(Config, ReadsEveryField) {
    LlamaConfig c = config_with({{"num_key_value_heads", 2},
                                 {"head_dim", 20},
                                 {"tie_word_embeddings", true},
                                 {"rope_theta", 5e5},
                                 {"rms_norm_eps", 1e-3},
                                 {"initializer_range", 0.1},
                                 {"max_position_embeddings", 77}});
    EXPECT_EQ(c.layers, 2);
    EXPECT_EQ(c.hidden, 64);
    EXPECT_EQ(c.heads, 4);
    EXPECT_EQ(c.kv_heads, 2);
    EXPECT_EQ(c.head_dim, 20);
    EXPECT_EQ(c.ffn, 96);
    EXPECT_EQ(c.vocab, 100);
    EXPECT_TRUE(c.tied);
    EXPECT_EQ(c.rope_theta, 5e5);
    EXPECT_EQ(c.norm_eps, 1e-3);
    EXPECT_EQ(c.init_std, 0.1);
    EXPECT_EQ(c.max_positions, 77);
    EXPECT_EQ(c.default_seq, 77);
    EXPECT_EQ(config_with({{"head_dim", nullptr}, {"num_key_value_heads", nullptr}}).head_dim, 16);
    TempDir dir;
    put(dir / "my.json", minimal().dump());
    EXPECT_EQ(load_config(dir / "my.json").hidden, 64);  // a file by itself
}

TEST(Config, RopeOfTransformers4And5) {
    const json llama3 = {{"factor", 32.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 8192}};
    auto with_type = [&](const char* key, double theta = 0) {
        json value = llama3;
        value[key] = "llama3";
        if (theta > 0) value["rope_theta"] = theta;
        return value;
    };
    for (const json& changes : {json{{"rope_theta", 5e5}, {"rope_scaling", with_type("rope_type")}},
                                json{{"rope_theta", 5e5}, {"rope_scaling", with_type("type")}},
                                json{{"rope_parameters", with_type("rope_type", 5e5)}},
                                json{{"rope_theta", 5e5},
                                     {"rope_scaling", nullptr},
                                     {"rope_parameters", with_type("rope_type")}}}) {
        LlamaConfig c = config_with(changes);
        EXPECT_EQ(c.rope_theta, 5e5);
        EXPECT_EQ(c.rope_scaling.type, RopeScaling::Type::llama3);
        EXPECT_EQ(c.rope_scaling.factor, 32);
        EXPECT_EQ(c.rope_scaling.low_freq_factor, 1);
        EXPECT_EQ(c.rope_scaling.high_freq_factor, 4);
        EXPECT_EQ(c.rope_scaling.original_max_positions, 8192);
    }
    for (const json& changes :
         {json{{"rope_theta", 77.0}, {"rope_scaling", nullptr}},
          json{{"rope_parameters", {{"rope_theta", 77}, {"rope_type", "default"}}}},
          json{{"rope_theta", 77}, {"rope_parameters", nullptr}},
          json{{"rope_theta", 77}, {"rope_scaling", {{"type", "default"}}}}}) {
        LlamaConfig c = config_with(changes);
        EXPECT_EQ(c.rope_theta, 77);
        EXPECT_EQ(c.rope_scaling.type, RopeScaling::Type::none);
    }
    json incomplete = with_type("rope_type");
    incomplete.erase("factor");
    expect_refused({{"rope_scaling", incomplete}}, "rope_scaling: lacks the field \"factor\"");
    incomplete["factor"] = -1;
    expect_refused({{"rope_scaling", incomplete}}, "rope_scaling: needs factor > 0");
    expect_refused(
        {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}},
        "rope_scaling: rope_type \"linear\" is not supported; \"default\" and \"llama3\" are");
    expect_refused({{"rope_parameters", {{"rope_type", "yarn"}}}},
                   "rope_parameters: rope_type \"yarn\" is not supported");
    expect_refused({{"rope_scaling", 3}}, "rope_scaling = 3 is not an object");
    expect_refused({{"rope_theta", "big"}}, "rope_theta = \"big\" is not a number");
    expect_refused({{"rope_theta", 0}}, "config: rms_norm_eps and rope_theta must be positive");
    expect_refused({{"partial_rotary_factor", 0.5}},
                   "partial_rotary_factor = 0.5 is not supported; 1.0 is");
}

// transformers' MistralConfig: absent means 4096, null no window; layer_types says it again.
TEST(Config, ReadsMistralsWindow) {
    const auto window = [](json changes) {
        changes["model_type"] = "mistral", changes["num_key_value_heads"] = 4;
        const LlamaConfig c = config_with(changes);
        EXPECT_EQ(std::string(model_type(c)), c.window > 0 ? "mistral" : "llama");
        return c.window;
    };
    EXPECT_EQ(window({}), 4096);
    EXPECT_EQ(window({{"sliding_window", nullptr}}), 0);
    EXPECT_EQ(window({{"sliding_window", 13}}), 13);
    EXPECT_EQ(window({{"sliding_window", 13},
                      {"layer_types", {"sliding_attention", "sliding_attention"}}}),
              13);
    expect_refused({{"model_type", "mistral"},
                    {"num_key_value_heads", 4},
                    {"sliding_window", 13},
                    {"layer_types", {"full_attention"}}},
                   "layers with different windows are not supported");
    expect_refused({{"model_type", "mistral"}, {"num_key_value_heads", 4}, {"sliding_window", -1}},
                   "config: sliding_window = -1 is negative");
    expect_refused({{"model_type", "mistral"}, {"sliding_window", "big"}},
                   "sliding_window = \"big\" is not an integer");
}

TEST(Config, RefusesWhatIsNotSupported) {
    expect_refused({{"model_type", "gemma"}},
                   "model_type = \"gemma\" is not supported; \"llama\", \"mistral\", \"gpt2\", "
                   "\"mixtral\", \"qwen3_moe\", \"deepseek\", \"deepseek_v2\" and "
                   "\"deepseek_v3\" are");
    expect_refused({{"architectures", {"LlamaForSequenceClassification"}}},
                   "architectures = [\"LlamaForSequenceClassification\"] is not supported");
    expect_refused({{"hidden_act", "gelu"}}, "hidden_act = \"gelu\" is not supported; \"silu\" is");
    expect_refused({{"attention_bias", true}}, "attention_bias = true is not supported; false is");
    expect_refused({{"mlp_bias", true}}, "mlp_bias = true is not supported; false is");
    expect_refused({{"attention_dropout", 0.1}},
                   "attention_dropout = 0.1 is not supported; 0.0 is");
    expect_refused({{"quantization_config", {{"bits", 4}}}}, "quantization_config");
}

TEST(Config, RefusesWrongSizes) {
    for (const char* field : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                              "intermediate_size", "vocab_size"}) {
        json value = minimal();
        value.erase(field);
        expect_error([&] { config_of(value); },
                     fmt::format("config.json: lacks the field \"{}\"", field));
        expect_refused({{field, 0}}, fmt::format("config: {} = 0", field));
        expect_refused({{field, -3}}, "= -3");
        expect_refused({{field, 2.5}}, fmt::format("{} = 2.5 is not an integer", field));
        expect_refused({{field, UINT64_MAX}},
                       fmt::format("{} = 18446744073709551615 is too large", field));
        expect_refused({{field, INT64_MAX}}, "");
    }
    json value = minimal();
    value.erase("model_type");
    expect_error([&] { config_of(value); }, "lacks the field \"model_type\"");
    expect_refused(
        {{"num_attention_heads", 3}},
        "hidden_size = 64 is not a multiple of num_attention_heads = 3, and head_dim is not given");
    expect_refused({{"num_key_value_heads", 3}},
                   "config: num_attention_heads = 4 is not a multiple of num_key_value_heads = 3");
    expect_refused({{"num_key_value_heads", 0}}, "config: num_key_value_heads = 0");
    expect_refused({{"head_dim", 15}}, "config: head_dim = 15 is odd");
    expect_refused({{"head_dim", 0}}, "config: head_dim = 0");
    expect_refused({{"tie_word_embeddings", 1}}, "tie_word_embeddings = 1 is not true or false");
    expect_refused({{"rms_norm_eps", 0}}, "config: rms_norm_eps");
    expect_refused({{"max_position_embeddings", 0}}, "max_position_embeddings = 0 is not positive");
    expect_refused({{"initializer_range", -1.0}}, "initializer_range = -1 is negative");
}

TEST(Config, RefusesFilesThatAreNone) {
    TempDir dir;
    expect_error([&] { load_config(dir.path()); },
                 "config.json: cannot be read: No such file or directory");
    put(dir / "config.json", "{\"hidden_size\": 64,");
    expect_error([&] { load_config(dir.path()); },
                 "config.json: the config is not JSON (wrong from byte 20 on)");
    put(dir / "config.json", "[1]");
    expect_error([&] { load_config(dir.path()); }, "config.json: the config is not a JSON object");
    put(dir / "config.json", "");
    expect_error([&] { load_config(dir.path()); }, "config.json: the config is not JSON");
}

}  // namespace
}  // namespace ultrascale
