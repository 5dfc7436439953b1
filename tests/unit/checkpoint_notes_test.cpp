// The notes on a checkpoint that a user sees: fields and tensors that are not read, and a head that
// is not tied.
#include "files/checkpoint_notes.h"

#include <nlohmann/json.hpp>

#include "saved_checkpoint.h"
#include "tests/test_util.h"
#include "write_tensor.h"

namespace ultrascale {
namespace {

using nlohmann::json;
using test::TempDir;
using Names = std::vector<std::string>;

class Notes : public testing::Test {
protected:
    // Copies a reference with more tensors (2, 3), or with a weight's copy under another name.
    void write(const std::string& reference, const Names& more, const std::string& copy = "",
               float change = 0) {
        const std::string from = test::reference(reference);
        test::put(dir_ / "config.json", test::slurp(from + "/config.json"));
        const Safetensors file = Safetensors::directory(from);
        std::vector<TensorPart> parts;
        const auto add = [&](const std::string& name, const Tensor& tensor) {
            parts.emplace_back(name, tensor);
        };
        for (const auto& [name, entry] : file.entries()) {
            const Tensor tensor = Tensor::zeros(entry.shape, DType::fp32, Memory::parameter);
            file.read(name, entry.shape, {}, tensor);
            add(name, tensor);
            if (name != "model.embed_tokens.weight" || copy.empty()) continue;
            std::vector<float> values = tensor.to_host<float>();
            values.back() += change;
            add(copy, Tensor::from_host<float>(values, entry.shape, Memory::parameter));
        }
        for (const std::string& name : more)
            add(name, Tensor::zeros({2, 3}, DType::fp32, Memory::parameter));
        std::vector<SafetensorsWriter::Item> items;
        for (const TensorPart& part : parts)
            items.push_back({part.name, part.tensor.shape(), DType::fp32});
        SafetensorsWriter writer(dir_.path(), "model", items);
        for (const TensorPart& part : parts) test::write(writer, part.tensor);
        writer.finish();
    }
    Names notes(bool loaded = true) {
        LlamaConfig config = load_config(dir_.path());
        config.tied = config.tied && !has_own_head(dir_.path());
        return checkpoint_notes(dir_.path(), config, loaded);
    }
    void expect(const std::string& words) { EXPECT_EQ(notes(), Names{dir_.path() + ": " + words}); }
    TempDir dir_;
};

TEST_F(Notes, NothingOfWhatIsRead) {
    for (const char* reference : {"gqa_untied", "tied_head_dim", "mixtral", "qwen3_moe"}) {
        write(reference, {"model.layers.0.self_attn.rotary_emb.inv_freq"});
        EXPECT_EQ(notes(), Names()) << reference;
    }
    write("gpt2", {"transformer.h.0.attn.bias"});
    EXPECT_EQ(notes(), Names());
}

TEST_F(Notes, TensorsThatNobodyReads) {
    write("tied_head_dim",
          {"model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.q_proj.bias",
           "model.layers.7.mlp.up_proj.weight", "lm_head.weight_scale_inv"});
    expect(
        "has tensors that this model does not have: lm_head.weight_scale_inv, "
        "model.layers.0.self_attn.q_norm.weight, model.layers.0.self_attn.q_proj.bias, "
        "model.layers.7.mlp.up_proj.weight");
    EXPECT_EQ(notes(false), Names());  // only the configuration is taken
    write("qwen3_moe", {"model.layers.0.mlp.experts.0.up_proj.weight",  // this layer is dense
                        "model.layers.1.mlp.experts.8.up_proj.weight"});
    expect(
        "has tensors that this model does not have: model.layers.0.mlp.experts.0.up_proj.weight, "
        "model.layers.1.mlp.experts.8.up_proj.weight");
    Names many;
    for (int i = 0; i < 11; ++i) many.push_back(fmt::format("x.{:02}", i));
    write("mixtral", many);
    expect(
        "has tensors that this model does not have: x.00, x.01, x.02, x.03, x.04, x.05, x.06, x.07 "
        "and 3 more");
}

TEST_F(Notes, AHeadThatIsNotTied) {
    write("tied_head_dim", {}, "lm_head.weight");
    EXPECT_FALSE(has_own_head(dir_.path()));
    EXPECT_EQ(notes(), Names());
    write("tied_head_dim", {}, "lm_head.weight", 1e-3F);
    EXPECT_TRUE(has_own_head(dir_.path()));
    expect(
        "config.json ties the output head to the embedding, but lm_head.weight differs from it: "
        "they are not tied");
}

TEST_F(Notes, FieldsOfTheConfiguration) {
    write("gqa_untied", {});
    json config = json::parse(test::slurp(dir_ / "config.json"));
    config["logit_scale"] = 0.5;
    test::put(dir_ / "config.json", config.dump());
    expect(
        "config.json has fields that are ignored here; if they change the model, its results will "
        "differ: logit_scale");
}

}  // namespace
}  // namespace ultrascale
