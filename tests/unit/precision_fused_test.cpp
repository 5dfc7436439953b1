// 08_mixed_precision's quantisation inside norms and SwiGLU changes no bit of a training; what is
// kept for backward, in which format, is what the formulas say.
#include <gtest/gtest.h>

#include "08_mixed_precision/lab/predict.h"
#include "tests/test_util.h"
#include "train/data.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
namespace {

const LlamaConfig config{
    .layers = 2, .hidden = 48, .heads = 8, .kv_heads = 4, .head_dim = 16, .ffn = 160, .vocab = 256};
constexpr int64_t B = 2, T = 32;

struct Outcome {
    double loss = 0;
    std::vector<Doubles> gradients;
    int64_t peak = 0;                                  // of activations
    std::map<std::string, std::vector<int64_t>> kept;  // in layer 0: bytes by the part's name
};

PrecisionOptions chosen(const std::string& recipe) {
    PrecisionOptions o{.recipe = *find_recipe(recipe)};
    o.history = 3;
    if (o.recipe.products == Products::tile) o.gradient_format = DType::e4m3;
    return o;
}
StepShape shape_of(const PrecisionOptions& o, Recompute recompute = Recompute::none) {
    return {.config = config,
            .model = {.dtype = o.recipe.activations, .recompute = recompute},
            .micro_batch = B,
            .seq = T};
}

// `steps` steps of two micro-batches, without an update; the last one's gradients.
Outcome run(const PrecisionOptions& o, int steps, const ModelOptions& model) {
    MixedTraining training(config, model, o, {});
    Options options;
    options.optimizer.lr = 0;
    training.start();
    const TokenFile file("common/text.txt", config.vocab);
    const DataLoader loader(file, {.seq = T});
    const Mesh one(Communicator::world(), {{"dp", 1}});
    Outcome outcome;
    for (int step = 1; step <= steps; ++step) {
        training.model.parameters().begin_gradients(2);
        training.storage.begin_step();
        Context context{.token_weight = 1 / float(2 * B * T)};
        context.loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
        for (int64_t m = 0; m < 2; ++m) {
            context.batch = to_device(loader.batch(2 * m, B));
            memory_reset_peak();
            Saved saved;
            training.model.forward({}, saved, context);
            if (m == 0)
                saved["layers.0"].for_each([&](const std::string& path, const Tensor& t) {
                    outcome.kept[path.substr(0, path.find('/'))].push_back(t.bytes());
                });
            training.model.backward({}, saved, context);
            outcome.peak = memory_peak_by_category()[int(Memory::activation)];
        }
        training.storage.round_gradients();
        training.end_step(step, one);
        outcome.loss = context.loss.to_host<double>()[0];
    }
    for (const Storage::StoredParameter& h : training.storage.all())
        outcome.gradients.push_back(to_double(h.sum()));
    return outcome;
}

Outcome run(const PrecisionOptions& o, int steps = 1, Recompute recompute = Recompute::none) {
    return run(o, steps, shape_of(o, recompute).model);
}

TEST(PrecisionFused, ChangesNoBit) {
    for (const char* recipe : {"tensor", "te", "row", "deepseek"})
        for (const Recompute recompute : {Recompute::none, Recompute::full}) {
            PrecisionOptions o = chosen(recipe);
            if (recompute == Recompute::full && o.recipe.products != Products::tile) continue;
            SCOPED_TRACE(recipe);
            const Outcome fused = run(o, 2, recompute);
            o.unfused = true;
            const Outcome apart = run(o, 2, recompute);
            EXPECT_EQ(fused.loss, apart.loss);
            EXPECT_GT(fused.loss, 5);
            EXPECT_EQ(fused.gradients, apart.gradients);
        }
    PrecisionOptions smooth = chosen("tensor");  // whose down_proj rounds by itself
    smooth.smooth = true;
    const Outcome fused = run(smooth);
    smooth.unfused = true;
    EXPECT_EQ(fused.gradients, run(smooth).gradients);
}

// A whole model of plain linears, which nothing is fused with, computes the bits of "tensor".
TEST(PrecisionFused, ThePlainLinearsGradientsAreTensors) {
    const Outcome plain = run(chosen("plain-fp8"), 2), general = run(chosen("tensor"), 2);
    EXPECT_EQ(plain.loss, general.loss);
    EXPECT_EQ(plain.gradients, general.gradients);
    const PrecisionOptions o = chosen("plain-fp8");
    EXPECT_EQ(plain.peak, predict_memory(shape_of(o), o).memory.peak_activations);
    EXPECT_GT(plain.peak, general.peak);
    // x in bf16, in both steps
    EXPECT_EQ(plain.kept.at("qkv_proj"), std::vector<int64_t>(2, 2 * B * T * 48));
}

// Also with what else is kept in fewer bits.
TEST(PrecisionFused, ActivationsAreWhatTheFormulaSays) {
    for (const char* recipe : {"tensor", "te", "row", "deepseek"})
        for (const bool unfused : {false, true})
            for (const bool more : {false, true}) {
                PrecisionOptions o = chosen(recipe);
                o.unfused = unfused, o.keep_fp8 = o.head_fp8 = more;
                const int64_t want = predict_memory(shape_of(o), o).memory.peak_activations;
                EXPECT_EQ(run(o).peak, want) << recipe << unfused << more;
            }
}

// Dropout copies dy, and a linear in fp8 keeps only what it rounds of the copy.
TEST(PrecisionFused, DropoutsCopyOfAGradientIsNotKept) {
    for (const bool smooth : {false, true}) {
        PrecisionOptions o = chosen("tensor");
        o.smooth = smooth;
        StepShape shape = shape_of(o);
        shape.model.dropout = 0.1;
        EXPECT_EQ(run(o, 1, shape.model).peak, predict_memory(shape, o).memory.peak_activations);
    }
}

TEST(PrecisionFused, NothingIsKeptOfANormsOutputThatIsMadeAgain) {
    constexpr int64_t N = B * T, h = 48;
    const auto kept_of = [](const char* recipe, bool unfused) {
        PrecisionOptions o = chosen(recipe);
        o.unfused = unfused;
        return run(o).kept.at("qkv_proj");
    };
    EXPECT_EQ(kept_of("tensor", true), (std::vector<int64_t>{2 * N * h, 4}));
    EXPECT_EQ(kept_of("tensor", false), (std::vector<int64_t>{N * h, 4}));
    // The norm's own input, which is not a second copy: the peak above counts it once.
    EXPECT_EQ(kept_of("deepseek", false), std::vector<int64_t>{2 * N * h});
}

TEST(PrecisionFused, AttentionsOutputIsKeptIn12Bits) {
    constexpr int64_t N = B * T, C = 128;
    PrecisionOptions o = chosen("deepseek");
    const Outcome exact = run(o);
    o.keep_fp8 = true;
    Outcome kept = run(o);
    // Both hold the packed tensor and its scales: attention beside q, k, v and the log-sum-exp.
    EXPECT_EQ(kept.kept.at("o_proj"), (std::vector<int64_t>{N * C * 3 / 2, 4 * N}));
    EXPECT_EQ(kept.kept.at("attention").size(), 6u);
    EXPECT_EQ(kept.loss, exact.loss);  // forward reads what it always read
    double off = 0, all = 0;
    for (size_t i = 0; i < exact.gradients.size(); ++i)
        for (size_t j = 0; j < exact.gradients[i].size(); ++j) {
            off += std::pow(kept.gradients[i][j] - exact.gradients[i][j], 2);
            all += std::pow(exact.gradients[i][j], 2);
        }
    EXPECT_GT(off, 0);
    EXPECT_LT(std::sqrt(off / all), 0.1);
    // Heads whose numbers do not fill tiles stay in bf16.
    LlamaConfig odd = config;
    odd.heads = 6;
    EXPECT_TRUE(keeps_e5m6(config, o));
    EXPECT_FALSE(keeps_e5m6(odd, o));
    o.recipe = *find_recipe("row");
    EXPECT_FALSE(keeps_e5m6(config, o));
}

}  // namespace
}  // namespace ultrascale
