// Checkpoints to read and to write: a reference model, and a checkpoint saved in the middle of a
// training.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "core/random.h"
#include "files/checkpoint.h"
#include "model/llama.h"
#include "tests/test_files.h"

namespace ultrascale {

// The model that the config.json in `dir` describes, with the weights there.
inline std::unique_ptr<Llama> load(const std::string& dir) {
    const LlamaConfig config = load_config(dir);
    auto model = std::make_unique<Llama>(config, ModelOptions{}, default_factories(config, {}),
                                         Stage::whole(config));
    model->parameters().allocate_values(DType::fp32);
    load_parameters(dir, model->parameters());
    return model;
}

class SavedCheckpoint : public testing::Test {
protected:
    void SetUp() override {
        config = load_config(test::reference("tied_head_dim"));
        model = load(test::reference("tied_head_dim"));
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
        save_checkpoint(dir.path(), config, model->parameters(),
                        {.max_shard_bytes = max_shard_bytes, .state = &at, .optimizer = optimizer});
    }
    std::set<std::string> files() {
        std::set<std::string> names;
        for (const auto& f : std::filesystem::directory_iterator(dir.path()))
            names.insert(f.path().filename());
        return names;
    }
    test::TempDir dir;
    LlamaConfig config;
    std::unique_ptr<Llama> model;
    std::vector<TensorPart> optimizer;
};

}  // namespace ultrascale
