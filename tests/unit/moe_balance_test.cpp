// The balance of a mixture of experts: a router's logits, the value of each loss when loads are
// equal, and the moves of a bias.
#include <gtest/gtest.h>

#include "06_expert_parallel/4_balance.h"
#include "06_expert_parallel/kernels/ops_experts.h"
#include "core/device.h"
#include "tests/test_util.h"

namespace ultrascale {
using namespace ultrascale::expert_parallel;
namespace {

// The bits of a row do not depend on the other rows.
TEST(MoeBalance, RouterLogits) {
    for (const DType dtype : {DType::fp32, DType::bf16}) {
        constexpr int64_t N = 50, E = 8, h = 70;
        const Tensor x = random_tensor({N, h}, dtype, 88), w = random_tensor({E, h}, dtype, 89),
                     logits = poisoned({N, E}, DType::fp32), some = poisoned({3, E}, DType::fp32);
        ops::router_logits(logits, x, w);
        ops::router_logits(some, x.slice(20, 23), w);
        const Doubles a = to_double(x), b = to_double(w);
        Doubles want;
        for (int64_t n = 0; n < N; ++n)
            for (int64_t e = 0; e < E; ++e)
                want.push_back(dot({a.begin() + n * h, a.begin() + (n + 1) * h},
                                   {b.begin() + e * h, b.begin() + (e + 1) * h}));
        EXPECT_LE(relative_error(logits, want), 2e-6);
        EXPECT_LE(relative_error(some, to_double(logits.slice(20, 23))),
                  device_is_gpu() ? 1e-6 : 0);
    }
}

// With equal loads and equal probabilities, the losses hf and switch are k, the others 1.
TEST(MoeBalance, WhatEachLossIsWhenBalanced) {
    constexpr double E = 8, k = 2, L = 3, T = 64;
    const auto balanced = [&](Aux kind) {
        const double layers = kind == Aux::hf ? L : 1, n = layers * T * k / E, p = T / E;
        return aux_factor(kind, E, k, L, T) * layers * E * n * p;
    };
    EXPECT_DOUBLE_EQ(balanced(Aux::hf), k);
    EXPECT_DOUBLE_EQ(balanced(Aux::switch_transformer), k);
    EXPECT_DOUBLE_EQ(balanced(Aux::megatron), 1);
    EXPECT_DOUBLE_EQ(balanced(Aux::sequence), 1);
}

TEST(MoeBalance, BiasMovesAgainstTheLoad) {
    const std::vector<float> moved = moved_bias({0, 1, -1, 0}, {10, 30, 20, 20}, 0.25);
    EXPECT_EQ(moved, (std::vector<float>{0.25f, 0.75f, -1, 0}));
    // 64 / 6 is not exact in binary, but the mean of six loads of 64 must be 64 again.
    const std::vector<float> even(6, 64), bias(6, 0.5f);
    EXPECT_EQ(moved_bias(bias, even, 0.25), bias);
    const StepLoads loads{.by_layer = {{10, 30, 20, 20}, {5, 5, 5, 5}}};
    EXPECT_DOUBLE_EQ(loads.imbalance(), 1.25);
}

// If all loads are equal, no balancing loss has a gradient: AdamW would amplify even rounding.
TEST(MoeBalance, EqualLoadsHaveNoGradient) {
    constexpr int64_t E = 4, k = 2, B = 2, T = 8, N = B * T, L = 2;
    LlamaConfig config;
    config.layers = L, config.experts.count = E, config.experts.router.top_k = k;
    std::vector<int32_t> even, uneven;
    for (int64_t i = 0; i < N * k; ++i)
        even.push_back(int32_t(i % E)), uneven.push_back(int32_t(i % (E - 1)));
    const std::vector<int32_t> no_tokens(size_t(N), 0);
    Context context;
    context.batch.tokens = Tensor::from_host<int32_t>(no_tokens, {B, T}, Memory::workspace);
    for (const Aux aux : {Aux::hf, Aux::switch_transformer, Aux::megatron, Aux::sequence})
        for (const auto score : {ops::RouterScore::softmax, ops::RouterScore::sigmoid})
            for (const std::vector<int32_t>* chosen : {&even, &uneven}) {
                config.experts.router.score = score;
                LoadBalance balance(config, {.aux = aux, .aux_coefficient = 1}, 1);
                balance.begin_step();
                const Tensor logits = random_tensor({N, E}, DType::fp32, 90),
                             scores = poisoned({N, E}, DType::fp32),
                             experts =
                                 Tensor::from_host<int32_t>(*chosen, {N, k}, Memory::workspace),
                             weights = poisoned({N, k}, DType::fp32),
                             choice = Tensor::empty({N, k}, DType::int32, Memory::workspace);
                ops::router_forward(choice, weights, scores, logits, {}, config.experts.router);
                for (int64_t layer = 0; layer < L; ++layer)
                    balance.chosen(layer, experts, scores, logits, context);
                double most = 0;
                for (const float d : balance.score_gradient(1, 0, scores).to_host<float>())
                    most = std::max(most, double(std::abs(d)));
                EXPECT_EQ(most > 0, chosen == &uneven) << aux_names[int(aux)] << " " << most;
            }
}

}  // namespace
}  // namespace ultrascale
