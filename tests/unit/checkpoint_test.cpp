#include "files/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "core/device.h"
#include "core/random.h"
#include "tests/test_files.h"

namespace ultrascale {
namespace {

using nlohmann::json;
using test::expect_error;
using test::put;
using test::reference;
using test::slurp;
using test::TempDir;
namespace fs = std::filesystem;

// The parameters of a Llama, as llama.h registers them.
void add_parameters(ParameterList& list, const LlamaConfig& c) {
    list.add({.name = "model.embed_tokens.weight", .shape = {c.vocab, c.hidden}});
    for (int64_t i = 0; i < c.layers; ++i) {
        std::string layer = fmt::format("model.layers.{}.", i);
        list.add({.name = layer + "input_layernorm.weight",
                  .shape = {c.hidden},
                  .start = Start::ones,
                  .decays = false});
        list.add({.name = layer + "self_attn.q_proj.weight", .shape = {c.q_size(), c.hidden}});
        list.add({.name = layer + "self_attn.k_proj.weight", .shape = {c.kv_size(), c.hidden}});
        list.add({.name = layer + "self_attn.v_proj.weight", .shape = {c.kv_size(), c.hidden}});
        list.add({.name = layer + "self_attn.o_proj.weight", .shape = {c.hidden, c.q_size()}});
        list.add({.name = layer + "post_attention_layernorm.weight",
                  .shape = {c.hidden},
                  .start = Start::ones,
                  .decays = false});
        for (const char* up : {"mlp.gate_proj.weight", "mlp.up_proj.weight"})
            list.add({.name = layer + up, .shape = {c.ffn, c.hidden}});
        list.add({.name = layer + "mlp.down_proj.weight", .shape = {c.hidden, c.ffn}});
    }
    list.add(
        {.name = "model.norm.weight", .shape = {c.hidden}, .start = Start::ones, .decays = false});
    if (!c.tied) list.add({.name = "lm_head.weight", .shape = {c.vocab, c.hidden}});
}

void load(const std::string& dir, ParameterList& list, DType dtype = DType::fp32) {
    add_parameters(list, load_config(dir));
    list.allocate_values(dtype);
    load_parameters(dir, list);
}

TEST(LoadParameters, ReadsTheReferences) {
    for (const char* name : {"gqa_untied", "tied_head_dim", "llama3_bf16"}) {
        ParameterList list;
        load(reference(name), list);
        Safetensors file = Safetensors::directory(reference(name));
        EXPECT_EQ(list.size(), file.entries().size()) << name;
        for (const auto& p : list)
            for (float v : p->value.to_host_float())
                ASSERT_TRUE(std::isfinite(v) && std::abs(v) < 3);
    }
}

TEST(LoadParameters, ReadsSlicesAndConverts) {
    ParameterList whole, part;
    load(reference("gqa_untied"), whole);
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

// tests/reference/saved.json holds hashes of the files that check_saved.py loaded with transformers
// and found to give the original's logits. If this fails because the format was changed on purpose:
//   export ULTRASCALE_SAVED_DIR=/tmp/saved
//   build/cpu/unit_test --gtest_filter=SaveCheckpoint.WritesWhatTransformersLoaded
//   python3 tests/reference/check_saved.py --write /tmp/saved
TEST(SaveCheckpoint, WritesWhatTransformersLoaded) {
    TempDir temporary;
    const char* keep = std::getenv("ULTRASCALE_SAVED_DIR");
    const std::string root = keep ? keep : temporary.path();
    json expected = json::parse(slurp(reference("saved.json")));
    for (const auto& [name, files] : expected.items()) {
        ParameterList list;
        load(reference(name), list);
        const bool bf16 = name == "llama3_bf16";
        save_checkpoint(root + "/" + name, load_config(reference(name)), list,
                        {.dtype = bf16 ? DType::bf16 : DType::fp32,
                         .max_shard_bytes = bf16 ? 30000 : default_shard_bytes});
        for (const auto& [file, hash] : files.items())
            EXPECT_EQ(fnv1a(slurp(root + "/" + name + "/" + file)), hash.get<std::string>())
                << name << "/" << file;
        EXPECT_EQ(size_t(std::distance(fs::directory_iterator(root + "/" + name), {})),
                  files.size());
    }
}

class Saved : public ::testing::Test {
protected:
    void SetUp() override {
        config = load_config(reference("tied_head_dim"));
        load(reference("tied_head_dim"), list);
        std::vector<float> m(40), v(40);
        for (size_t i = 0; i < 40; ++i)
            m[i] = Random(1, "m").normal(i), v[i] = Random(1, "v").normal(i);
        optimizer = {{"exp_avg.model.norm.weight",
                      Tensor::from_host(std::span<const float>(m), {40}, Memory::optimizer)},
                     {"exp_avg_sq.model.norm.weight",
                      Tensor::from_host(std::span<const float>(v), {40}, Memory::optimizer)}};
    }
    std::vector<TensorPart> blank(DType dtype = DType::fp32, int64_t size = 40) {
        std::vector<TensorPart> result;
        for (const TensorPart& part : optimizer)
            result.emplace_back(part.name, Tensor::zeros({size}, dtype, Memory::optimizer));
        return result;
    }
    void save(int64_t step, int64_t max_shard_bytes = default_shard_bytes) {
        TrainingState at{.step = step,
                         .next_sample = 8 * step,
                         .tokens_seen = 1l << 60,
                         .seed = UINT64_MAX,
                         .shuffled = true,
                         .seq = 96};
        at.data = "/data/a \"b\".bin", at.data_tokens = 1l << 40;
        save_checkpoint(dir.path(), config, list,
                        {.max_shard_bytes = max_shard_bytes, .state = &at, .optimizer = optimizer});
    }
    std::set<std::string> files() {
        std::set<std::string> names;
        for (const auto& f : fs::directory_iterator(dir.path())) names.insert(f.path().filename());
        return names;
    }
    TempDir dir;
    LlamaConfig config;
    ParameterList list;
    std::vector<TensorPart> optimizer;
};

TEST_F(Saved, ComesBackBitwise) {
    save(7);
    EXPECT_EQ(files(), (std::set<std::string>{"config.json", "model.safetensors",
                                              "optimizer.safetensors", "trainer_state.json"}));
    ParameterList again;
    load(dir.path(), again);
    for (const auto& p : list)
        EXPECT_EQ(again.find(p->name)->value.to_host_float(), p->value.to_host_float());
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

TEST_F(Saved, RefusesAnotherOptimizerState) {
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

TEST_F(Saved, ReplacesAnEarlierSaveAndKeepsOtherFiles) {
    save(7, 10000);  // in shards
    EXPECT_TRUE(fs::exists(dir / "model.safetensors.index.json"));
    put(dir / "tokenizer.json", "{}");
    save_checkpoint(dir.path(), config, list);  // one file, no training state
    EXPECT_EQ(files(),
              (std::set<std::string>{"config.json", "model.safetensors", "tokenizer.json"}));
}

// A kill before the commit: what was there counts, the half-written files do not and go with the
// next save.
TEST_F(Saved, SurvivesAKillWhileWriting) {
    save(7);
    fs::create_directory(dir / ".saving");
    put(dir / ".saving/model.safetensors", "half");
    put(dir / ".saving/commit.123.tmp", "move model.safetensors\n");
    ParameterList again;
    load(dir.path(), again);
    EXPECT_EQ(load_training_state(dir.path(), blank()).step, 7);
    save(8);
    EXPECT_EQ(load_training_state(dir.path(), blank()).step, 8);
    EXPECT_EQ(files().count(".saving"), 0u);
}

// A kill after the commit, when some files have been renamed already: the new checkpoint counts.
TEST_F(Saved, SurvivesAKillWhileRenaming) {
    TempDir newer;
    save(7);
    TrainingState state{.step = 8};
    save_checkpoint(newer.path(), config, list,
                    {.max_shard_bytes = 100000, .state = &state, .optimizer = optimizer});
    ASSERT_TRUE(fs::exists(newer / "model.safetensors.index.json"));
    fs::create_directory(dir / ".saving");
    std::string commit = "remove model.safetensors\n";
    for (const auto& f : fs::directory_iterator(newer.path())) {
        std::string name = f.path().filename();
        fs::copy(f.path(), name == "config.json" ? dir / name : dir / (".saving/" + name),
                 fs::copy_options::overwrite_existing);
        commit += "move " + name + "\n";
    }
    put(dir / ".saving/commit", commit);
    EXPECT_EQ(load_training_state(dir.path(), blank()).step, 8);
    EXPECT_EQ(files().count(".saving"), 0u);
    EXPECT_EQ(files().count("model.safetensors"), 0u);
    ParameterList again;
    load(dir.path(), again);

    fs::create_directory(dir / ".saving");
    put(dir / ".saving/commit", "remove ../x\n");
    expect_error([&] { load_config(dir.path()); }, "names a file outside the directory: ../x");
}

// Really killed, at moments of chance: every time there is one whole checkpoint, whose files belong
// together.
TEST_F(Saved, SurvivesBeingKilledAtAnyMoment) {
    if (device_is_gpu()) GTEST_SKIP() << "CUDA does not work in a forked process";
    auto save_all = [&](int64_t step) {
        std::vector<float> values(40, float(step));
        for (TensorPart& part : optimizer) part.tensor.copy_from_host(values.data());
        list.find("model.norm.weight")->value.copy_from_host(values.data());
        save(step, step % 2 ? default_shard_bytes : 50000);  // in one file and in shards by turns
    };
    const auto start = std::chrono::steady_clock::now();
    save_all(0);
    const double save_seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    std::set<int64_t> seen;
    for (int round = 0; round < 25 || (seen.size() < 2 && round < 200);
         ++round) {  // longer on a busy disk
        pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            for (int64_t step = 1; step < 1000; ++step) save_all(step);
            _exit(0);
        }
        usleep(
            useconds_t(4e6 * save_seconds * (1 + round / 10.0) * Random(3, "kill").uniform(round)));
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        std::vector<TensorPart> read = blank();
        const int64_t step = load_training_state(dir.path(), read).step;
        seen.insert(step);
        ParameterList again;
        load(dir.path(), again);
        const std::vector<float> expected(40, float(step));
        EXPECT_EQ(read[0].tensor.to_host_float(), expected);
        EXPECT_EQ(read[1].tensor.to_host_float(), expected);
        EXPECT_EQ(again.find("model.norm.weight")->value.to_host_float(), expected);
    }
    EXPECT_GT(seen.size(), 1u);
}

TEST_F(Saved, UnwritableDirectory) {
    put(dir / "file", "");
    expect_error([&] { save_checkpoint(dir / "file", config, list); },
                 "the directory cannot be made");
}

}  // namespace
}  // namespace ultrascale
