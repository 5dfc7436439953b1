#include "model/optimizer.h"

#include <gtest/gtest.h>

#include "core/ops.h"
#include "model/muon.h"
#include "tests/test_util.h"
#include "train/gradients.h"

namespace ultrascale {
namespace {

// A matrix and a norm, with values and gradients drawn from a seed.
struct Model {
    ParameterList list;
    explicit Model(DType dtype, DType grad_dtype = DType::fp32) {
        list.add({.name = "matrix", .shape = {5, 7}, .init_std = 1});
        list.add({.name = "norm", .shape = {7}, .init = Init::ones, .decays = false});
        list.allocate_values(dtype);
        list.allocate_grads(grad_dtype);
        ops::copy(list.flat_values(), random_tensor({42}, DType::fp32, 1));
    }
    void draw_gradient(uint64_t seed, float scale = 1) {
        ops::copy(list.flat_grads(), random_tensor({42}, DType::fp32, seed));
        ops::scale(list.flat_grads(), scale);
    }
};

// AdamW as in PyTorch's documentation, in double precision, after clipping as in clip_grad_norm_.
struct PlainAdamW {
    OptimizerOptions options;
    Doubles weight, m = Doubles(42), v = Doubles(42);
    int steps = 0;

    void step(double lr, Doubles gradient) {
        const double norm = std::sqrt(dot(gradient, gradient));
        ++steps;
        for (size_t i = 0; i < weight.size(); ++i) {
            const double g = options.clip > 0
                                 ? gradient[i] * std::min(1.0, options.clip / (norm + 1e-6))
                                 : gradient[i];
            if (i < 35) weight[i] *= 1 - lr * options.weight_decay;  // the matrix
            m[i] = options.beta1 * m[i] + (1 - options.beta1) * g;
            v[i] = options.beta2 * v[i] + (1 - options.beta2) * g * g;
            const double m_hat = m[i] / (1 - std::pow(options.beta1, steps)),
                         v_hat = v[i] / (1 - std::pow(options.beta2, steps));
            weight[i] -= lr * m_hat / (std::sqrt(v_hat) + options.eps);
        }
    }
};

// Returns the relative error of the fp32 weights (with bf16: of the master copy) after 12 steps.
double error_after_steps(const OptimizerOptions& options, DType dtype, DType grad_dtype,
                         float gradient_scale, double wrong_lr = 1) {
    Model model(dtype, grad_dtype);
    AdamW optimizer(model.list, options);
    PlainAdamW plain{.options = options, .weight = to_double(model.list.flat_values())};
    for (int64_t step = 0; step < 12; ++step) {
        model.draw_gradient(uint64_t(step) + 2, gradient_scale);
        const double lr = learning_rate(options, step);
        plain.step(lr * wrong_lr, to_double(model.list.flat_grads()));
        optimizer.step(lr, squared_gradient_norm(model.list));
    }
    if (dtype == DType::fp32) return relative_error(model.list.flat_values(), plain.weight);
    Doubles master;
    for (const TensorPart& state : optimizer.states())
        if (state.name.starts_with("master.")) {
            const Doubles part = to_double(state.tensor);
            master.insert(master.end(), part.begin(), part.end());
        }
    EXPECT_LT(relative_error(model.list.flat_values(), master),
              4e-3);  // values are the rounded master
    return relative_error(master, plain.weight);
}

TEST(AdamW, EqualsThePlainFormulaInDouble) {
    const OptimizerOptions base{.lr = 0.05, .cosine = true, .warmup = 4, .total_steps = 12};
    for (DType dtype : {DType::fp32, DType::bf16, DType::fp16})
        for (DType grad_dtype : {DType::fp32, DType::bf16, DType::fp16})
            for (double clip : {0.0, 1.0, 100.0})
                for (float scale : {1e-4f, 1.0f}) {
                    OptimizerOptions options = base;
                    options.clip = clip;
                    EXPECT_LT(error_after_steps(options, dtype, grad_dtype, scale), 1e-6)
                        << clip << " " << scale;
                }
    EXPECT_GT(error_after_steps(base, DType::fp32, DType::fp32, 1, 1.01),
              1e-4);  // the comparison detects a 1 % higher learning rate
}

TEST(AdamW, OtherHyperparameters) {
    EXPECT_LT(error_after_steps(
                  {.lr = 0.1, .beta1 = 0.5, .beta2 = 0.99, .eps = 1e-3, .weight_decay = 0.7},
                  DType::fp32, DType::fp32, 1),
              1e-6);
    EXPECT_LT(error_after_steps({.lr = 0.1, .weight_decay = 0}, DType::fp32, DType::fp32, 1), 1e-6);
}

TEST(AdamW, DecaysMatricesAndNotNorms) {
    Model model(DType::fp32);
    AdamW optimizer(model.list, {.weight_decay = 0.5});
    const Doubles before = to_double(model.list.flat_values());
    optimizer.step(0.1, squared_gradient_norm(model.list));  // gradients are zero
    const Doubles after = to_double(model.list.flat_values());
    for (size_t i = 0; i < 42; ++i)
        EXPECT_FLOAT_EQ(float(after[i]), float(before[i] * (i < 35 ? 0.95 : 1)));
}

TEST(AdamW, StatesAppearWithTheFirstStepAndHaveTheirNames) {
    for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
        Model model(dtype);
        AdamW optimizer(model.list, {});
        const int64_t before = memory_now()[int(Memory::optimizer)];
        optimizer.step(1e-3, squared_gradient_norm(model.list));
        EXPECT_EQ(memory_now()[int(Memory::optimizer)] - before,
                  42 * (dtype == DType::fp32 ? 8 : 12));
        std::vector<std::string> names;
        for (const TensorPart& state : optimizer.states()) {
            EXPECT_EQ(state.tensor.dtype(), DType::fp32);
            names.push_back(state.name);
        }
        std::vector<std::string> expected = {"exp_avg.matrix", "exp_avg_sq.matrix", "master.matrix",
                                             "exp_avg.norm",   "exp_avg_sq.norm",   "master.norm"};
        if (dtype == DType::fp32)
            std::erase_if(expected,
                          [](const std::string& name) { return name.starts_with("master"); });
        EXPECT_EQ(names, expected);
        EXPECT_EQ(optimizer.steps_done(), 1);
    }
}

// After values, states and the step count are copied, another optimizer continues with the same
// bits.
TEST(AdamW, ContinuesFromItsStatesBitwise) {
    for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
        Model one(dtype), two(dtype);
        AdamW first(one.list, {.lr = 0.05}), second(two.list, {.lr = 0.05});
        const auto step = [](Model& model, AdamW& optimizer, uint64_t seed) {
            model.draw_gradient(seed);
            optimizer.step(0.05, squared_gradient_norm(model.list));
        };
        step(one, first, 7);
        step(one, first, 8);
        ops::copy(two.list.flat_values(), one.list.flat_values());
        auto from = first.states(), to = second.states();
        ASSERT_EQ(from.size(), to.size());
        for (size_t i = 0; i < from.size(); ++i) ops::copy(to[i].tensor, from[i].tensor);
        second.set_steps_done(2);
        step(one, first, 9);
        step(two, second, 9);
        EXPECT_EQ(to_double(one.list.flat_values()), to_double(two.list.flat_values()));
    }
}

TEST(GradientNorm, CountsEachElement) {
    Model model(DType::fp32);
    model.draw_gradient(3);
    const Doubles gradient = to_double(model.list.flat_grads());
    EXPECT_NEAR(to_double(squared_gradient_norm(model.list))[0], dot(gradient, gradient), 1e-9);
}

TEST(LearningRate, ConstantAfterLinearWarmUp) {
    const OptimizerOptions options{.lr = 2, .warmup = 4};
    const double expected[] = {0.5, 1, 1.5, 2, 2, 2};
    for (int64_t step = 0; step < 6; ++step)
        EXPECT_DOUBLE_EQ(learning_rate(options, step), expected[step]);
    EXPECT_DOUBLE_EQ(learning_rate({.lr = 2}, 0), 2);
    EXPECT_DOUBLE_EQ(learning_rate(options, 1'000'000), 2);
}

TEST(LearningRate, CosineFallsToATenthAndStaysThere) {
    const OptimizerOptions options{.lr = 2, .cosine = true, .warmup = 10, .total_steps = 110};
    EXPECT_DOUBLE_EQ(learning_rate(options, 9), 2);
    EXPECT_DOUBLE_EQ(learning_rate(options, 10), 2);
    EXPECT_NEAR(learning_rate(options, 35), 0.2 + 1.8 * (1 + std::sqrt(0.5)) / 2,
                1e-12);                                   // a quarter
    EXPECT_NEAR(learning_rate(options, 60), 1.1, 1e-12);  // half way: the mean of 2 and 0.2
    EXPECT_NEAR(learning_rate(options, 110), 0.2, 1e-12);
    EXPECT_NEAR(learning_rate(options, 5000), 0.2, 1e-12);
    for (int64_t step = 10; step < 109; ++step)
        EXPECT_GT(learning_rate(options, step), learning_rate(options, step + 1));
}

TEST(LearningRate, WarmUpAsLongAsTheRun) {
    const OptimizerOptions options{.lr = 1, .cosine = true, .warmup = 5, .total_steps = 5};
    for (int64_t step = 0; step < 8; ++step) EXPECT_GT(learning_rate(options, step), 0) << step;
}

// A layer's matrix has one state, everything else AdamW's two; a piece of a matrix is refused.
TEST(Muon, UpdatesWholeMatricesOfLayers) {
    ParameterList list;
    Parameter* matrix = list.add({.name = "model.layers.0.mlp.up_proj.weight", .shape = {5, 7}});
    list.add({.name = "model.layers.0.input_layernorm.weight", .shape = {7}});
    list.add({.name = "model.embed_tokens.weight", .shape = {9, 7}});
    list.allocate_values(DType::bf16);
    list.allocate_grads(DType::bf16);
    EXPECT_EQ(Muon::numel(list), 35);
    const std::unique_ptr<AdamW> muon = make_optimizer(items_of(list), {.muon = true});
    std::vector<std::string> names;
    int64_t bytes = 0;
    for (const TensorPart& part : muon->states())
        names.push_back(part.name), bytes += part.tensor.bytes();
    EXPECT_EQ(bytes, (35 + 7 + 63) * 12 - 35 * 4);
    EXPECT_TRUE(std::ranges::count(names, "momentum.model.layers.0.mlp.up_proj.weight"));
    EXPECT_FALSE(std::ranges::count(names, "exp_avg.model.layers.0.mlp.up_proj.weight"));
    EXPECT_TRUE(std::ranges::count(names, "exp_avg.model.embed_tokens.weight"));
    EXPECT_THROW(make_optimizer({{matrix, 0, matrix->value.slice(0, 3), matrix->grad.slice(0, 3)}},
                                {.muon = true}),
                 std::exception);
}

}  // namespace
}  // namespace ultrascale
