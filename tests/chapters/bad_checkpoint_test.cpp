// Checkpoints from which 00_single_gpu cannot continue, because of their weights, their
// configuration, or the state of their training.
#include <cstring>

#include "compare_runs.h"
#include "refused.h"

namespace ultrascale::test {
namespace {

// A copy of a reference checkpoint that a test may spoil.
class BadInputCheckpoint : public testing::Test {
protected:
    void SetUp() override {
        for (const char* file : {"config.json", "model.safetensors"})
            fs::copy(reference("gqa_untied") + "/" + file, dir.path());
        weights = slurp(model);
        std::memcpy(&header_bytes, weights.data(), 8);
        header = Json::parse(weights.substr(8, header_bytes));
    }
    void expect(const std::vector<std::string>& telling) {
        expect_refused(
            fmt::format("--load {} --data {}/tokens.bin", dir.path(), reference("gqa_untied")),
            telling);
    }
    void put_header(const std::string& text) {
        const uint64_t size = text.size();
        put(model, std::string(reinterpret_cast<const char*>(&size), 8) + text +
                       weights.substr(8 + header_bytes));
    }
    void change_config(const std::string& field, const Json& value) {
        Json config = Json::parse(slurp(reference("gqa_untied") + "/config.json"));
        if (value.is_null())
            config.erase(field);
        else
            config[field] = value;
        put(dir / "config.json", config.dump());
    }
    TempDir dir;
    const std::string model = dir / "model.safetensors", config = dir / "config.json";
    std::string weights;
    uint64_t header_bytes = 0;
    Json header;
};

TEST_F(BadInputCheckpoint, Weights) {
    fs::remove(model);
    expect({dir.path(), "model.safetensors"});
    for (size_t size : {size_t(0), size_t(7), size_t(8), size_t(100), weights.size() - 1}) {
        put(model, weights.substr(0, size));
        expect({model});
    }
    put(model, weights + "x");
    expect({model});
    // A zip, as written by torch.save, would have a header of petabytes.
    put(model, "PK\3\4" + weights.substr(4));
    expect({model, "header"});
    put(model,
        weights.substr(0, 8) + std::string(header_bytes, 'x') + weights.substr(8 + header_bytes));
    expect({model, "JSON"});
    put(model, std::string(4096, '\0'));
    expect({model});
}

TEST_F(BadInputCheckpoint, HeadersThatPointOutside) {
    const std::string name = "model.layers.0.self_attn.q_proj.weight";
    const int64_t size = int64_t(weights.size() - 8 - header_bytes);
    for (const Json& offsets : {Json{size, size + 48 * 48 * 4}, Json{-9216, 0}, Json{9216, 0},
                                Json{0, uint64_t(1) << 63}, Json{0}, Json("all")}) {
        Json changed = header;
        changed[name]["data_offsets"] = offsets;
        put_header(changed.dump());
        expect({model, name});
    }
    Json changed = header;
    changed[name]["shape"] = {int64_t(1) << 40, int64_t(1) << 40};
    put_header(changed.dump());
    expect({model, name});
    changed = header;
    changed.erase(name);
    put_header(changed.dump());
    expect({model});
}

TEST_F(BadInputCheckpoint, WrongShapesAndNames) {
    change_config("intermediate_size", 96);
    expect({model, "mlp.gate_proj.weight", "(88, 48)", "(96, 48)"});
    change_config("num_hidden_layers", 3);
    expect({model, "model.layers.2."});
    change_config("vocab_size", 98);
    expect({model, "model.embed_tokens.weight", "97", "98"});
}

TEST_F(BadInputCheckpoint, Config) {
    fs::remove(config);
    expect({config, "No such file"});
    for (const char* text : {"", "{", "not JSON", "{\"hidden_size\": 48,}"}) {
        put(config, text);
        expect({config, "JSON"});
    }
    put(config, "[1, 2]");
    expect({config, "object"});
    for (const char* field : {"hidden_size", "intermediate_size", "num_attention_heads",
                              "num_hidden_layers", "vocab_size"}) {
        change_config(field, nullptr);
        expect({config, "lacks", field});
    }
    const auto refused = [&](const char* field, const Json& value, const std::string& part) {
        change_config(field, value);
        expect({config, field, part});
    };
    refused("num_attention_heads", 3, "num_key_value_heads = 2");
    refused("num_key_value_heads", 3, "num_attention_heads = 4");
    refused("head_dim", 11, "odd");
    refused("hidden_size", "wide", "wide");
    refused("hidden_size", -48, "-48");
    refused("num_hidden_layers", 1'000'000'000, "1000000000");
    refused("vocab_size", 1.5, "1.5");
    refused("hidden_act", "gelu", "silu");
    refused("attention_bias", true, "false");
    refused("mlp_bias", true, "false");
    refused("model_type", "gemma", "llama");
    refused("attention_dropout", 0.1, "0.1");
    refused("rope_scaling", Json{{"rope_type", "yarn"}, {"factor", 2.0}}, "yarn");
    refused("rope_parameters", Json{{"rope_type", "linear"}, {"factor", 2.0}, {"rope_theta", 1e4}},
            "linear");
    refused("rope_scaling", Json{{"rope_type", "llama3"}, {"factor", 8.0}}, "low_freq_factor");
    change_config("head_dim", nullptr);
    put(config,
        Json::parse(slurp(config))
            .patch(Json::parse(R"([{"op": "replace", "path": "/hidden_size", "value": 50}])"))
            .dump());
    expect({config, "hidden_size = 50", "num_attention_heads = 4"});
}

TEST_F(BadInputCheckpoint, TrainingState) {
    const auto from = [](const std::string& where) {
        return fmt::format("--load {} --data {}/tokens.bin --seq 64 --no-verify ", where,
                           reference("gqa_untied"));
    };
    const std::string load = from(dir / "saved"), go_on = from(dir / "shuffled");
    train("00_single_gpu", from(dir.path()) + "--steps 1 --save " + dir / "saved");
    expect_refused(load + "--dtype bf16",
                   {"--dtype bf16", dir / "saved", "goes on with --dtype fp32"});
    expect_refused(load + "--shuffle", {"--shuffle", dir / "saved", "goes on without it"});
    expect_refused(load + "--seq 32", {"--seq 32", "64 tokens"});
    train("00_single_gpu", load + "--steps 1 --save " + dir / "saved");
    train("00_single_gpu",
          from(dir.path()) + "--steps 1 --shuffle --seed 3 --save " + dir / "shuffled");
    expect_refused(go_on + "--seed 5", {"--seed 5", "seed 3"});
    expect_same_bits(train("00_single_gpu", go_on + "--shuffle --seed 3 --steps 1"),
                     train("00_single_gpu", go_on + "--steps 1"));
    // A state without recorded options, as earlier versions wrote it.
    const auto forget = [](const std::string& folder) {
        Json of = Json::parse(slurp(folder + "/trainer_state.json"));
        of.erase("options");
        put(folder + "/trainer_state.json", of.dump());
    };
    forget(dir / "saved"), forget(dir / "shuffled");
    expect_refused(load + "--dtype bf16",
                   {"optimizer.safetensors", "no master weights", "--dtype fp32"});
    expect_refused(load + "--shuffle", {"in order", "without --shuffle"});
    expect_refused(go_on, {"--shuffle --seed 3"});
    const std::string state = dir / "saved/trainer_state.json",
                      optimizer = dir / "saved/optimizer.safetensors";
    const std::string kept = slurp(optimizer);
    put(optimizer, kept.substr(0, kept.size() / 2));
    expect_refused(load, {optimizer});
    fs::remove(optimizer);
    expect_refused(load, {optimizer, "No such file"});
    put(optimizer, kept);
    put(state, "{\"step\": 1}");
    expect_refused(load, {state, "next_sample"});
    put(state, "{\"step\": -1, \"next_sample\": 0, \"tokens_seen\": 0, \"seed\": 1}");
    expect_refused(load, {state, "step = -1"});
    put(state,
        "{\"step\": 1, \"next_sample\": 0, \"tokens_seen\": 0, \"seed\": 1, \"shuffled\": 1, "
        "\"seq\": 64}");
    expect_refused(load, {state, "shuffled"});
}

}  // namespace
}  // namespace ultrascale::test
