// 00_single_gpu compared with Hugging Face transformers, whose numbers come from
// tests/reference/make_reference.py.
#include <cmath>

#include "run_program.h"

namespace ultrascale::test {
namespace {

const char* const references[] = {"gqa_untied", "tied_head_dim", "llama3_bf16", "mistral",
                                  "gpt2",       "latent",        "latent_no_q"};

Json expected_of(const std::string& name) {
    return Json::parse(slurp(reference(name) + "/expected.json"));
}

Outcome train_reference(const std::string& name, const std::string& arguments,
                        const std::string& load = "") {
    const std::string dir = reference(name);
    return train(
        "00_single_gpu",
        fmt::format("--load {} --data {}/tokens.bin --steps {} --seq 64 --lr 1e-3 --no-verify {}",
                    load.empty() ? dir : load, dir, expected_of(name).at("steps").get<int>(),
                    arguments));
}

// Returns the largest |loss - reference| and the largest relative difference of a gradient norm,
// over all steps.
std::pair<double, double> differences(const Outcome& run, const Json& expected) {
    const auto losses = expected.at("loss").get<std::vector<double>>(),
               norms = expected.at("grad_norm").get<std::vector<double>>();
    EXPECT_EQ(run.steps.size(), losses.size());
    double loss = 0, norm = 0;
    for (size_t i = 0; i < std::min(losses.size(), run.steps.size()); ++i) {
        loss = std::max(loss, std::abs(run.of("loss")[i] - losses[i]));
        norm = std::max(norm, std::abs(run.of("grad_norm")[i] / norms[i] - 1));
    }
    return {loss, norm};
}

// Muon, in float64 as torch.optim.Muon computes it (tests/reference/make_muon_reference.py).
TEST(SingleGpuReference, Muon) {
    const Json expected = Json::parse(slurp(reference("muon.json")));
    for (const char* split : {"--micro-batch 8", "--micro-batch 2 --grad-accum 4"}) {
        const auto [loss, norm] = differences(
            train_reference("gqa_untied", fmt::format("--optimizer muon {}", split)), expected);
        EXPECT_LE(loss, 5e-6);
        EXPECT_LE(norm, 1e-4);
    }
    for (const char* wrong :
         {"", "--optimizer muon --weight-decay 0", "--optimizer muon --lr 2e-3"})
        EXPECT_GT(differences(train_reference("gqa_untied", wrong), expected).first, 1e-5) << wrong;
}

class Reference : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(SingleGpu, Reference, testing::ValuesIn(references),
                         [](const auto& info) { return std::string(info.param); });

// Any split of the 8 sequences, with any recomputation. Attention and loss chunks alternate so that
// each occurs with every split.
TEST_P(Reference, LossesAndGradientNorms) {
    const Json expected = expected_of(GetParam());
    const char* const splits[] = {
        "--micro-batch 8 --grad-accum 1", "--micro-batch 4 --grad-accum 2",
        "--micro-batch 2 --grad-accum 4", "--micro-batch 1 --grad-accum 8"};
    const char* const recompute[] = {"none", "selective", "full"};
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 3; ++j) {
            const std::string arguments = fmt::format(
                "{} --recompute {} --attention {} --loss-chunk {}", splits[i], recompute[j],
                (i + j) % 2 ? "naive" : "flash", (i / 2 + j) % 2 ? 37 : 0);
            SCOPED_TRACE(arguments);
            const auto [loss, norm] =
                differences(train_reference(GetParam(), arguments), expected.at("float64"));
            EXPECT_LE(loss, 5e-6);
            EXPECT_LE(norm, 1e-4);
        }
}

// The mask that transformers was given: tokens of the prefix see each other, within the window.
TEST(SingleGpuReference, APrefix) {
    const Json expected = expected_of("mistral").at("prefix");
    const Outcome run = train("00_single_gpu",
                              fmt::format("--load {0} --data {0}/tokens.bin --steps 1 --seq 64 "
                                          "--micro-batch 4 --grad-accum 2 --no-verify --prefix {1}",
                                          reference("mistral"), expected.at("tokens").get<int>()));
    EXPECT_NEAR(run.of("loss")[0], expected.at("loss").get<double>(), 5e-6);
    EXPECT_NEAR(run.of("grad_norm")[0] / expected.at("grad_norm").get<double>(), 1, 1e-4);
}

TEST_P(Reference, Float32TooAndPlain) {
    const auto [loss, norm] =
        differences(train_reference(GetParam(), ""), expected_of(GetParam()).at("float32"));
    EXPECT_LE(loss, 5e-6);
    EXPECT_LE(norm, 1e-4);
}

// The comparison detects small mistakes: each of these options is one.
TEST_P(Reference, SeesWrongOptionsAndConfigs) {
    const Json expected = expected_of(GetParam()).at("float64");
    for (const char* wrong :
         {"--weight-decay 0", "--clip 0", "--lr 1.001e-3", "--warmup 2", "--shuffle"})
        EXPECT_GT(differences(train_reference(GetParam(), wrong), expected).first, 5e-6) << wrong;
    TempDir dir;
    for (const auto& entry : std::filesystem::directory_iterator(reference(GetParam())))
        std::filesystem::copy(entry, dir.path());
    const Json config = Json::parse(slurp(dir / "config.json"));
    for (const auto& [field, value] : {std::pair<const char*, Json>{"rms_norm_eps", 1e-3},
                                       {"rope_theta", 9000.0},
                                       {"layer_norm_epsilon", 1e-3}}) {
        if (!config.contains(field)) continue;
        Json changed = config;
        changed[field] = value;
        if (std::string(field) == "rope_theta" && changed.contains("rope_parameters"))
            changed["rope_parameters"][field] = value;
        put(dir / "config.json", changed.dump());
        EXPECT_GT(differences(train_reference(GetParam(), "", dir.path()), expected).first, 5e-6)
            << field;
    }
}

TEST(SingleGpuReference, VerifiesItself) {
    const Outcome run = train(
        "00_single_gpu",
        fmt::format(
            "--load {0} --data {0}/tokens.bin --steps 3 --seq 64 --micro-batch 4 --grad-accum 2",
            reference("gqa_untied")));
    EXPECT_EQ(run.summary.at("verify").at("result"), "ok");
    EXPECT_LE(run.summary.at("verify").at("gradient").get<double>(), 1e-5);
}

std::string fnv1a(const std::string& bytes) {
    uint64_t value = 0xCBF29CE484222325;
    for (unsigned char byte : bytes) value = (value ^ byte) * 0x100000001B3;
    return fmt::format("{:016x}", value);
}

// The saved bytes are those that transformers loaded (check_saved.py --write).
TEST(SingleGpuReference, SavesWhatTransformersLoaded) {
    const Json saved = Json::parse(slurp(reference("saved.json")));
    for (const char* name : references) {
        TempDir dir;
        const bool bf16 = std::string(name) == "llama3_bf16";
        train("00_single_gpu",
              fmt::format(
                  "--load {0} --data {0}/tokens.bin --seq 64 --steps 0 --save {1} --dtype {2}",
                  reference(name), dir / "saved", bf16 ? "bf16" : "fp32"));
        EXPECT_EQ(fnv1a(slurp(dir / "saved/config.json")),
                  saved.at(name).at("config.json").get<std::string>())
            << name;
        if (!bf16) {  // the reference comes in shards, which only a larger model needs
            EXPECT_EQ(fnv1a(slurp(dir / "saved/model.safetensors")),
                      saved.at(name).at("model.safetensors").get<std::string>())
                << name;
        }
    }
}

}  // namespace
}  // namespace ultrascale::test
