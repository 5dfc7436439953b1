// AdamW with master weights, moments and gradients of any dtype, with scales and stochastic
// rounding.
#include "08_mixed_precision/kernels/ops_adamw_any.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/test_util.h"

namespace ultrascale {
namespace {

ops::AdamWSettings settings(int64_t step, float max_norm = 0) {
    return {.lr = 0.01f,
            .beta1 = 0.9f,
            .beta2 = 0.95f,
            .eps = 1e-8f,
            .step = step,
            .max_norm = max_norm};
}

double factor_of(const Tensor& scale) { return scale ? to_double(scale)[0] : 1; }

// Returns the values that a tensor represents: its numbers times its scale.
Doubles meaning(const Tensor& t, const Tensor& scale) {
    Doubles x = to_double(t);
    const double factor = factor_of(scale);
    for (double& v : x) v *= factor;
    return x;
}

// A format's relative half unit in the last place, and its smallest number.
struct Precision {
    double half_unit, smallest;
};
Precision precision(DType dtype) {
    switch (dtype) {
        case DType::fp32: return {0x1p-24, 1e-44};
        case DType::bf16: return {0x1p-8, 1e-40};
        case DType::fp16: return {0x1p-11, 0x1p-24};
        case DType::e4m3: return {0x1p-4, 0x1p-9};
        default: return {0x1p-3, 0x1p-16};
    }
}
void expect_rounded(const Tensor& got, const Tensor& scale, const Doubles& want, const char* what) {
    const Precision p = precision(got.dtype());
    const double s = factor_of(scale);
    const Doubles x = meaning(got, scale);
    // 1e-7 is the precision that fp32 loses when two terms of about 1 cancel.
    for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(x[i], want[i],
                    (p.half_unit + 2e-6) * std::abs(want[i]) + 1.0001 * p.smallest * s + 1e-7)
            << what << " " << i;
    if (!scale) return;
    // The scale is the smallest power of two with which all numbers fit.
    double largest = 0;
    for (double v : want) largest = std::max(largest, std::abs(v));
    int exponent = 0;
    EXPECT_EQ(std::frexp(s, &exponent), 0.5) << what;
    const double number = got.dtype() == DType::fp16   ? 65504
                          : got.dtype() == DType::e4m3 ? 448
                                                       : 57344;
    EXPECT_LE(largest / s, number * (1 + 1e-5)) << what;
    EXPECT_GT(largest / s, number * 0.49999) << what;
}

// One update in double precision, of the values that the tensors represent.
struct Expected {
    Doubles p, m, v;
    Expected(const ops::AdamWAnyItem& item, const ops::AdamWSettings& s, double squared_norm)
        : p(meaning(item.master, item.master_scale)),
          m(meaning(item.m, item.m_scale)),
          v(meaning(item.v, item.v_scale)) {
        const double clip =
            s.max_norm > 0 ? std::min(1.0, s.max_norm / (std::sqrt(squared_norm) + 1e-6)) : 1;
        const Doubles g = meaning(item.gradient, item.gradient_scale);
        const double b1 = double(s.beta1), b2 = double(s.beta2), lr = double(s.lr);
        for (size_t i = 0; i < p.size(); ++i) {
            m[i] = b1 * m[i] + (1 - b1) * clip * g[i];
            v[i] = b2 * v[i] + (1 - b2) * clip * clip * g[i] * g[i];
            const double mhat = m[i] / (1 - std::pow(b1, double(s.step))),
                         vhat = v[i] / (1 - std::pow(b2, double(s.step)));
            p[i] = p[i] * (1 - lr * double(item.weight_decay)) -
                   lr * mhat / (std::sqrt(vhat) + double(s.eps));
        }
    }
};

struct Recipe {
    const char* name;
    DType value, master, m, v, gradient;
    bool scaled;  // tensors of fewer than 16 bits, or in fp16, have scales
};
// The playbook's table, and recipes that it does not have.
constexpr Recipe recipes[] = {
    {"bf16, fp32", DType::bf16, DType::fp32, DType::fp32, DType::fp32, DType::fp32, false},
    {"bf16", DType::bf16, DType::fp32, DType::fp32, DType::fp32, DType::bf16, false},
    {"Transformer Engine", DType::fp32, DType::fp32, DType::fp32, DType::fp32, DType::fp32, false},
    {"FP8-LM", DType::e4m3, DType::fp16, DType::e4m3, DType::fp16, DType::e4m3, true},
    {"DeepSeek-V3", DType::e4m3, DType::fp32, DType::bf16, DType::bf16, DType::fp32, true},
    {"nanotron", DType::e4m3, DType::bf16, DType::e4m3, DType::e5m2, DType::e4m3, true},
    {"fp16", DType::fp16, DType::fp32, DType::fp32, DType::fp32, DType::fp16, false},
    {"all bf16", DType::bf16, DType::bf16, DType::bf16, DType::bf16, DType::bf16, false},
};

// Returns n standard normal numbers times `factor`. If `odd`, the tensor begins one element after
// an address that is aligned for packs.
Tensor part(int64_t n, DType dtype, uint64_t seed, double factor, bool odd) {
    Doubles x = to_double(random_tensor({n + 4}, DType::fp32, seed));
    for (double& v : x) v *= factor;
    return tensor_of(x, {n + 4}, dtype).slice(odd, n + odd);
}

ops::AdamWAnyItem item_of(const Recipe& r, int64_t n, bool odd, uint64_t seed) {
    const auto scale = [&](DType dtype, double value) {
        const bool narrow = dtype_bytes(dtype) == 1 || dtype == DType::fp16;
        return r.scaled && narrow ? tensor_of({value}, {1}, DType::fp32) : Tensor();
    };
    ops::AdamWAnyItem item = {.master = part(n, r.master, seed, 1, odd), .weight_decay = 0.1f};
    item.value = r.value == r.master ? item.master : part(n, r.value, 1, 0, odd);
    item.m = part(n, r.m, 1, 0, odd);
    item.v = part(n, r.v, 1, 0, odd);
    item.value_scale =
        item.value.data() == item.master.data() ? scale(r.master, 1) : scale(r.value, 1);
    item.master_scale = scale(r.master, 1);
    if (item.value.data() == item.master.data()) item.value_scale = item.master_scale;
    item.m_scale = scale(r.m, 1);
    item.v_scale = scale(r.v, 1);
    item.gradient_scale = scale(r.gradient, 0.25);
    return item;
}

TEST(OpsAdamWAny, EachRecipesUpdateIsTheDocumentedOneRounded) {
    for (const Recipe& r : recipes)
        for (float max_norm : {0.0f, 3.0f}) {
            std::vector<ops::AdamWAnyItem> items;
            for (int64_t n : {20000, 1, 67, 16384})
                items.push_back(item_of(r, n, n == 67, uint64_t(n)));
            const Tensor norm = tensor_of({400}, {1}, DType::fp64);
            for (int64_t step = 1; step <= 3; ++step) {
                std::vector<Expected> want;
                for (ops::AdamWAnyItem& item : items) {
                    const int64_t n = item.master.numel();
                    item.gradient = part(n, r.gradient, uint64_t(100 + step), 2, n == 67);
                    want.emplace_back(item, settings(step, max_norm), 400);
                }
                ops::adamw_any(items, norm, settings(step, max_norm));
                for (size_t i = 0; i < items.size(); ++i) {
                    const ops::AdamWAnyItem& item = items[i];
                    SCOPED_TRACE(fmt::format("{} step {} item {}", r.name, step, i));
                    expect_rounded(item.master, item.master_scale, want[i].p, "master");
                    expect_rounded(item.value, item.value_scale, want[i].p, "value");
                    expect_rounded(item.m, item.m_scale, want[i].m, "m");
                    expect_rounded(item.v, item.v_scale, want[i].v, "v");
                }
            }
        }
}

// The gradient is far below the largest one of its tensor. If v were rounded to zero, the update
// would be a million times the learning rate.
TEST(OpsAdamWAny, ASmallSecondMomentIsNotZero) {
    for (DType dtype : {DType::e4m3, DType::e5m2, DType::fp16}) {
        Doubles g(64, 1e-6);
        g[0] = 1;
        const Tensor p = Tensor::zeros({64}, DType::fp32, Memory::parameter),
                     norm = tensor_of({0}, {1}, DType::fp64);
        ops::AdamWAnyItem item = {.value = p,
                                  .master = p,
                                  .m = Tensor::zeros({64}, DType::fp32, Memory::optimizer),
                                  .v = Tensor::zeros({64}, dtype, Memory::optimizer),
                                  .gradient = tensor_of(g, {64}, DType::fp32),
                                  .weight_decay = 0,
                                  .v_scale = tensor_of({1}, {1}, DType::fp32)};
        for (int64_t step = 1; step <= 3; ++step) ops::adamw_any({item}, norm, settings(step));
        for (double v : to_double(item.v)) EXPECT_GT(v, 0);
        for (double x : to_double(p)) EXPECT_LT(std::abs(x), 0.04);
        item.gradient = Tensor::zeros({64}, DType::fp32, Memory::gradient);
        item.v = Tensor::zeros({64}, dtype, Memory::optimizer);
        ops::adamw_any({item}, norm, settings(1));
        EXPECT_EQ(to_double(item.v), Doubles(64, 0));  // v is exactly zero
    }
}

// Weights that no update moves lose nothing to the scale, however often it is set.
TEST(OpsAdamWAny, AMasterThatDoesNotChangeKeepsItsBits) {
    const int64_t n = 1000;
    ops::AdamWAnyItem item = item_of(recipes[3], n, false, 5);
    item.weight_decay = 0;
    item.gradient = part(n, DType::e4m3, 1, 0, false);
    const Tensor none = tensor_of({0}, {1}, DType::fp64);
    ops::adamw_any({item}, none, settings(1));
    const Doubles before = meaning(item.master, item.master_scale);
    for (int64_t step = 2; step < 6; ++step) ops::adamw_any({item}, none, settings(step));
    EXPECT_EQ(meaning(item.master, item.master_scale), before);
}

TEST(OpsAdamWAny, SkipLeavesEverything) {
    for (const Recipe& r : recipes) {
        ops::AdamWAnyItem item = item_of(r, 5000, false, 1);
        item.gradient = part(5000, r.gradient, 2, 1, false);
        const Tensor norm = tensor_of({INFINITY}, {1}, DType::fp64);
        const auto all = [&] {
            std::vector<Doubles> values;
            for (const Tensor& t : {item.value, item.master, item.m, item.v})
                values.push_back(to_double(t));
            for (const Tensor& t :
                 {item.value_scale, item.master_scale, item.m_scale, item.v_scale})
                if (t) values.push_back(to_double(t));
            return values;
        };
        const std::vector<Doubles> before = all();
        ops::adamw_any({item}, norm, settings(1, 1), integers({1}, {1}));
        EXPECT_EQ(all(), before) << r.name;
        ops::adamw_any({item}, norm, settings(1), integers({0}, {1}));
        EXPECT_NE(all(), before) << r.name;
    }
}

// The updates are a hundredth of a unit in the last place. Rounded to nearest they never move a
// weight; rounded stochastically they move it by the right amount on average. Pieces get the same
// bits.
TEST(OpsAdamWAny, StochasticRounding) {
    const int64_t n = 20003;
    const Tensor norm = tensor_of({0}, {1}, DType::fp64);
    for (DType dtype : {DType::bf16, DType::fp16, DType::e4m3, DType::e5m2}) {
        const double unit = 2 * precision(dtype).half_unit;  // for numbers in [1, 2)
        const auto weights = [&] { return tensor_of(Doubles(size_t(n), 1.5), {n}, dtype); };
        const Tensor nearest = weights(), whole = weights(), pieces = weights();
        const Tensor gradient = tensor_of(Doubles(size_t(n), 1), {n}, DType::fp32);
        std::vector<Tensor> moments;
        for (int i = 0; i < 6; ++i)
            moments.push_back(Tensor::zeros({n}, DType::fp32, Memory::optimizer));
        constexpr int64_t steps = 20;
        for (int64_t step = 1; step <= steps; ++step) {
            ops::AdamWSettings s = settings(step);
            s.lr = float(unit / 100);
            const Random random(3, fmt::format("round.w.{}", step));
            ops::adamw_any({{nearest, nearest, moments[0], moments[1], gradient, 0}}, norm, s);
            ops::adamw_any({{.value = whole,
                             .master = whole,
                             .m = moments[2],
                             .v = moments[3],
                             .gradient = gradient,
                             .weight_decay = 0,
                             .rounding = random,
                             .first = 8}},
                           norm, s);
            std::vector<ops::AdamWAnyItem> items;
            for (auto [begin, end] : {std::pair(int64_t(0), int64_t(5)), {5, 10004}, {10004, n}})
                items.push_back({.value = pieces.slice(begin, end),
                                 .master = pieces.slice(begin, end),
                                 .m = moments[4].slice(begin, end),
                                 .v = moments[5].slice(begin, end),
                                 .gradient = gradient.slice(begin, end),
                                 .weight_decay = 0,
                                 .rounding = random,
                                 .first = uint64_t(8 + begin)});
            ops::adamw_any(items, norm, s);
        }
        EXPECT_EQ(to_double(nearest), Doubles(size_t(n), 1.5));
        EXPECT_EQ(to_double(whole), to_double(pieces));
        double mean = 0;
        for (double x : to_double(whole)) {
            mean += x / double(n);
            EXPECT_EQ(std::remainder(1.5 - x, unit / 2), 0);  // e5m2 gets below 1
        }
        // All gradients are equal, so the update is lr. The mean is of n numbers of variance steps
        // * unit^2 / 100.
        EXPECT_NEAR(mean, 1.5 - steps * unit / 100,
                    5 * unit * std::sqrt(steps / 100.0 / double(n)));
    }
    const Tensor wide = Tensor::zeros({4}, DType::fp32, Memory::parameter);
    EXPECT_THROW(ops::adamw_any({{.value = wide,
                                  .master = wide,
                                  .m = wide,
                                  .v = wide,
                                  .gradient = wide,
                                  .weight_decay = 0,
                                  .rounding = Random(1, "x")}},
                                norm, settings(1)),
                 std::logic_error);
}

// Without gradients a second moment shrinks by 5 % a step. Rounded to nearest in 8 bits it soon
// stops; rounded stochastically it continues to shrink on average, and pieces get the same bits.
TEST(OpsAdamWAny, StochasticRoundingOfMoments) {
    constexpr int64_t n = 20000, steps = 30;
    const Tensor norm = tensor_of({0}, {1}, DType::fp64);
    for (DType dtype : {DType::e4m3, DType::e5m2}) {
        const Tensor gradient = Tensor::zeros({n}, DType::fp32, Memory::gradient);
        struct State {
            Tensor master, m, v, m_scale, v_scale;
        };
        const auto start = [&] {
            return State{Tensor::zeros({n}, DType::fp32, Memory::optimizer),
                         tensor_of(Doubles(size_t(n), 1), {n}, dtype),
                         tensor_of(Doubles(size_t(n), 256), {n}, dtype),
                         tensor_of({1}, {1}, DType::fp32), tensor_of({1}, {1}, DType::fp32)};
        };
        const State nearest = start(), random = start(), pieces = start();
        const auto item = [&](const State& s, int64_t begin, int64_t end,
                              std::optional<Random> rounding) {
            return ops::AdamWAnyItem{.value = s.master.slice(begin, end),
                                     .master = s.master.slice(begin, end),
                                     .m = s.m.slice(begin, end),
                                     .v = s.v.slice(begin, end),
                                     .gradient = gradient.slice(begin, end),
                                     .weight_decay = 0,
                                     .m_scale = s.m_scale,
                                     .v_scale = s.v_scale,
                                     .first = uint64_t(begin),
                                     .state_rounding = rounding};
        };
        for (int64_t step = 1; step <= steps; ++step) {
            const Random bits(3, fmt::format("moments.{}", step));
            ops::adamw_any({item(nearest, 0, n, {})}, norm, settings(step));
            ops::adamw_any({item(random, 0, n, bits)}, norm, settings(step));
        }
        const auto mean = [](const Tensor& t, const Tensor& scale) {
            double sum = 0;
            for (double x : meaning(t, scale)) sum += x / double(n);
            return sum;
        };
        EXPECT_GT(mean(nearest.v, nearest.v_scale), 2 * 256 * std::pow(0.95, steps));
        EXPECT_NEAR(mean(random.v, random.v_scale) / (256 * std::pow(0.95, steps)), 1, 0.02);
        EXPECT_NEAR(mean(random.m, random.m_scale) / std::pow(0.9, steps), 1, 0.05);
        // One step from the same state, on the whole and on pieces with scales of their own. The
        // scales are powers of two, so the values of the codes agree.
        const Random bits(4, "moments");
        const State whole = start();
        ops::adamw_any({item(whole, 0, n, bits)}, norm, settings(1));
        ops::adamw_any({item(pieces, 0, 7, bits)}, norm, settings(1));
        const Doubles all = meaning(whole.v, whole.v_scale);
        const Doubles part = meaning(pieces.v.slice(0, 7), pieces.v_scale);
        EXPECT_EQ(Doubles(all.begin(), all.begin() + 7), part);
    }
}

}  // namespace
}  // namespace ultrascale
