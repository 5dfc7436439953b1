#include "files/checkpoint.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "saved_checkpoint.h"

namespace ultrascale {
namespace {

using nlohmann::json;
using test::expect_error;
using test::put;
using test::reference;
using test::slurp;
using test::TempDir;
namespace fs = std::filesystem;

TEST(LoadParameters, ReadsTheReferences) {
    for (const char* name : {"gqa_untied", "tied_head_dim", "llama3_bf16"}) {
        const auto model = load(reference(name));
        Safetensors file = Safetensors::directory(reference(name));
        EXPECT_EQ(model->parameters().size(), file.entries().size()) << name;
        for (const auto& p : model->parameters())
            for (float v : p->value.to_host_float())
                ASSERT_TRUE(std::isfinite(v) && std::abs(v) < 3);
    }
}

TEST(LoadParameters, ReadsSlicesAndConverts) {
    const auto model = load(reference("gqa_untied"));
    const ParameterList& whole = model->parameters();
    ParameterList part;
    const Shape shape = whole.find("model.layers.1.self_attn.q_proj.weight")->shape;  // (48, 48)
    part.add({.name = "model.layers.1.self_attn.q_proj.weight",
              .shape = shape,
              .slice = {{12, 24}, {0, 48}}});
    part.add({.name = "model.layers.1.self_attn.o_proj.weight",
              .shape = shape,
              .slice = {{0, 48}, {12, 24}}});
    part.allocate_values(DType::bf16);
    load_parameters(reference("gqa_untied"), part);
    auto q = whole.find("model.layers.1.self_attn.q_proj.weight")->value.to_host_float();
    auto o = whole.find("model.layers.1.self_attn.o_proj.weight")->value.to_host_float();
    auto q_part = part.find("model.layers.1.self_attn.q_proj.weight")->value.to_host_float();
    auto o_part = part.find("model.layers.1.self_attn.o_proj.weight")->value.to_host_float();
    for (size_t i = 0; i < 12; ++i)
        for (size_t j = 0; j < 48; ++j) {
            EXPECT_EQ(q_part[i * 48 + j], float(bf16(q[(12 + i) * 48 + j])));
            EXPECT_EQ(o_part[j * 12 + i], float(bf16(o[j * 48 + 12 + i])));
        }
}

TEST(LoadParameters, NamesWhatIsMissingOrOfAnotherShape) {
    ParameterList list;
    list.add({.name = "lm_head.weight", .shape = {128, 40}});
    list.allocate_values(DType::fp32);
    expect_error([&] { load_parameters(reference("tied_head_dim"), list); },
                 "model.safetensors: has no tensor \"lm_head.weight\"");
    ParameterList other;
    other.add({.name = "model.norm.weight", .shape = {41}});
    other.allocate_values(DType::fp32);
    expect_error([&] { load_parameters(reference("tied_head_dim"), other); },
                 "tensor \"model.norm.weight\" has shape (40), but the model needs (41)");
    TempDir dir;
    expect_error([&] { load_parameters(dir.path(), other); },
                 "has neither model.safetensors nor model.safetensors.index.json");
}

std::string fnv1a(const std::string& bytes) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return fmt::format("{:016x}", hash);
}

// tests/reference/saved.json holds hashes of files that check_saved.py loaded with transformers,
// and whose logits equal the original's. If this test fails because the format was changed on
// purpose:
//   export ULTRASCALE_SAVED_DIR=/tmp/saved
//   build/cpu/unit_test --gtest_filter=SaveCheckpoint.WritesWhatTransformersLoaded
//   python3 tests/reference/check_saved.py --write /tmp/saved
TEST(SaveCheckpoint, WritesWhatTransformersLoaded) {
    TempDir temporary;
    const char* keep = std::getenv("ULTRASCALE_SAVED_DIR");
    const std::string root = keep ? keep : temporary.path();
    json expected = json::parse(slurp(reference("saved.json")));
    for (const auto& [name, files] : expected.items()) {
        const auto model = load(reference(name));
        const bool bf16 = name == "llama3_bf16";
        save_checkpoint(root + "/" + name, load_config(reference(name)), model->parameters(),
                        {.dtype = bf16 ? DType::bf16 : DType::fp32,
                         .max_shard_bytes = bf16 ? 30000 : default_shard_bytes});
        for (const auto& [file, hash] : files.items())
            EXPECT_EQ(fnv1a(slurp(root + "/" + name + "/" + file)), hash.get<std::string>())
                << name << "/" << file;
        EXPECT_EQ(size_t(std::distance(fs::directory_iterator(root + "/" + name), {})),
                  files.size());
    }
}

TEST_F(SavedCheckpoint, ComesBackBitwise) {
    save(7);
    EXPECT_EQ(files(), (std::set<std::string>{"config.json", "model.safetensors",
                                              "optimizer.safetensors", "trainer_state.json"}));
    const auto again = load(dir.path());
    for (const auto& p : model->parameters())
        EXPECT_EQ(again->parameters().find(p->name)->value.to_host_float(),
                  p->value.to_host_float());
    LlamaConfig c = load_config(dir.path());
    EXPECT_EQ(c.head_dim, config.head_dim);
    EXPECT_EQ(c.rope_theta, config.rope_theta);
    EXPECT_EQ(c.norm_eps, config.norm_eps);
    EXPECT_TRUE(c.tied);
    EXPECT_TRUE(has_training_state(dir.path()));
    std::vector<TensorPart> read = blank();
    TrainingState state = load_training_state(dir.path(), read);
    EXPECT_EQ(state.step, 7);
    EXPECT_EQ(state.next_sample, 56);
    EXPECT_EQ(state.tokens_seen, int64_t(1) << 60);
    EXPECT_EQ(state.seed, UINT64_MAX);
    EXPECT_TRUE(state.shuffled);
    EXPECT_EQ(load_training_state(dir.path()).seq, 96);
    EXPECT_EQ(state.data, "/data/a \"b\".bin");
    EXPECT_EQ(state.data_tokens, int64_t(1) << 40);
    for (size_t i = 0; i < read.size(); ++i)
        EXPECT_EQ(read[i].tensor.to_host_float(), optimizer[i].tensor.to_host_float());
}

TEST_F(SavedCheckpoint, RefusesAnotherOptimizerState) {
    save(7);
    expect_error([&] { load_training_state(dir.path(), blank(DType::bf16)); },
                 "\"exp_avg.model.norm.weight\" is F32; this run keeps it as BF16");
    expect_error([&] { load_training_state(dir.path(), blank(DType::fp32, 41)); },
                 "has shape (40), but the model needs (41)");
    const Tensor tensor = Tensor::zeros({40}, DType::fp32, Memory::optimizer);
    expect_error(
        [&] {
            load_training_state(dir.path(), {{"master.x", tensor}});
        },
        "optimizer.safetensors: has no master weights");
    for (TensorPart& part : optimizer) part.name = "master." + part.name;
    save(7);
    expect_error(
        [&] {
            load_training_state(dir.path(), {{"exp_avg.x", tensor}});
        },
        "optimizer.safetensors: has master weights");
    put(dir / "trainer_state.json",
        "{\"step\": -1, \"next_sample\": 0, \"tokens_seen\": 0, \"seed\": 1}");
    expect_error([&] { load_training_state(dir.path(), {}); },
                 "trainer_state.json: step = -1 is negative");
    put(dir / "trainer_state.json", "{\"step\": 1}");
    expect_error([&] { load_training_state(dir.path(), {}); }, "lacks the field \"next_sample\"");
    fs::remove(dir / "trainer_state.json");
    EXPECT_FALSE(has_training_state(dir.path()));
    expect_error([&] { load_training_state(dir.path(), {}); },
                 "trainer_state.json: cannot be read");
}

TEST_F(SavedCheckpoint, ReplacesAnEarlierSaveAndKeepsOtherFiles) {
    save(7, 10000);  // in shards
    EXPECT_TRUE(fs::exists(dir / "model.safetensors.index.json"));
    put(dir / "tokenizer.json", "{}");
    save_checkpoint(dir.path(), config, model->parameters());  // one file, no training state
    EXPECT_EQ(files(),
              (std::set<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
}

TEST_F(SavedCheckpoint, UnwritableDirectory) {
    put(dir / "file", "");
    expect_error([&] { save_checkpoint(dir / "file", config, model->parameters()); },
                 "the directory cannot be made");
}

}  // namespace
}  // namespace ultrascale
