// 08_mixed_precision's linear in fp8: its three products are those of the numbers rounded group by
// group, computed here in float64.
#include <gtest/gtest.h>

#include "08_mixed_precision/2_plain_fp8_linear.h"
#include "08_mixed_precision/7_fp8_head.h"
#include "core/device.h"
#include "tests/test_util.h"

namespace ultrascale {
using namespace ultrascale::mixed_precision;
namespace {

constexpr int64_t N = 48, h = 160, F1 = 48, F2 = 112, F = F1 + F2;

struct Matrix {
    int64_t rows, cols;
    Doubles values;
    double& at(int64_t r, int64_t c) { return values[size_t(r * cols + c)]; }
    double at(int64_t r, int64_t c) const { return values[size_t(r * cols + c)]; }
};
Matrix transposed(const Matrix& m) {
    Matrix t{m.cols, m.rows, Doubles(m.values.size())};
    for (int64_t r = 0; r < m.rows; ++r)
        for (int64_t c = 0; c < m.cols; ++c) t.at(c, r) = m.at(r, c);
    return t;
}
// Each group, of so many rows and columns, is divided by its own scale and rounded.
template <class Format>
Matrix rounded(const Matrix& m, int64_t group_rows, int64_t group_cols) {
    Matrix result = m;
    for (int64_t r0 = 0; r0 < m.rows; r0 += group_rows)
        for (int64_t c0 = 0; c0 < m.cols; c0 += group_cols) {
            const int64_t r1 = std::min(m.rows, r0 + group_rows),
                          c1 = std::min(m.cols, c0 + group_cols);
            double amax = 0;
            for (int64_t r = r0; r < r1; ++r)
                for (int64_t c = c0; c < c1; ++c) amax = std::max(amax, std::abs(m.at(r, c)));
            // In fp32, as the scale is kept: half-way cases are frequent among numbers of 8 bits.
            const float scale = float(amax) / Format::largest(), factor = 1 / scale;
            for (int64_t r = r0; r < r1; ++r)
                for (int64_t c = c0; c < c1; ++c)
                    result.at(r, c) =
                        double(scale) * double(Format::decode(Format::encode(
                                            float(m.at(r, c)) * factor, Overflow::saturate)));
        }
    return result;
}
Matrix rounded(const Matrix& m, DType dtype, ops::ScaleGroup group) {
    const int64_t all = int64_t(1) << 40;
    const auto [rows, cols] = group == ops::ScaleGroup::tensor ? std::pair{all, all}
                              : group == ops::ScaleGroup::row  ? std::pair{int64_t(1), all}
                              : group == ops::ScaleGroup::tile
                                  ? std::pair{int64_t(1), int64_t(128)}
                                  : std::pair{int64_t(128), int64_t(128)};
    return dtype == DType::e4m3 ? rounded<formats::E4m3>(m, rows, cols)
                                : rounded<formats::E5m2>(m, rows, cols);
}
// a b^T
Doubles product(const Matrix& a, const Matrix& b) {
    Doubles d;
    for (int64_t m = 0; m < a.rows; ++m)
        for (int64_t n = 0; n < b.rows; ++n) {
            double sum = 0;
            for (int64_t k = 0; k < a.cols; ++k) sum += a.at(m, k) * b.at(n, k);
            d.push_back(sum);
        }
    return d;
}
double distance(const Doubles& a, const Doubles& b) {
    double off = 0, all = 0;
    for (size_t i = 0; i < a.size(); ++i) off += std::pow(a[i] - b[i], 2), all += std::pow(b[i], 2);
    return std::sqrt(off / all);
}
Matrix matrix_of(const Tensor& t) { return {t.rows(), t.cols(), to_double(t)}; }

Tensor random_tensor(const char* name, Shape shape, DType dtype) {
    const Random random(5, name);
    Doubles numbers;
    // Rows and columns of different sizes, so that groups matter.
    for (int64_t i = 0; i < numel(shape); ++i)
        numbers.push_back(double(random.normal(uint64_t(i))) *
                          std::exp2(double(i % 7) - double(i / shape.back() % 5)));
    return tensor_of(numbers, shape, dtype);
}

// A linear of two stacked weights, and what it needs.
struct Setting {
    ParameterList parameters;
    std::shared_ptr<Fp8Shared> shared;
    std::unique_ptr<Fp8Linear> linear;
    Tensor x = random_tensor("x", {2, N / 2, h}, DType::bf16),
           dy = random_tensor("dy", {2, N / 2, F}, DType::bf16),
           residual = random_tensor("residual", {2, N / 2, F}, DType::bf16);

    Setting(Products products, DType gradient_format, bool keeps) {
        PrecisionOptions o{.gradient_format = gradient_format, .history = 4};
        o.recipe.products = products;
        shared = std::make_shared<Fp8Shared>(o);
        std::vector<Parameter*> rows{
            parameters.add({.name = "model.layers.0.mlp.gate_proj.weight", .shape = {F1, h}}),
            parameters.add({.name = "model.layers.0.mlp.up_proj.weight", .shape = {F2, h}})};
        parameters.allocate_values(DType::bf16);
        parameters.allocate_grads(DType::fp32);
        ops::copy(parameters.flat_values(), random_tensor("w", {F, h}, DType::bf16).view({F * h}));
        linear = std::make_unique<Fp8Linear>(rows, shared, keeps);
        shared->histories.allocate(parameters);
    }
    Tensor weight() const { return parameters.flat_values().view({F, h}); }
    struct Results {
        Doubles y, dx, dw;
    };
    // `times` micro-batches.
    Results run(int times = 1) {
        parameters.begin_gradients(times);
        Context context;
        Results results;
        for (int i = 0; i < times; ++i) {
            Saved saved;
            results.y = to_double(linear->forward(x, saved, context, residual));
            results.dx = to_double(linear->backward(dy, saved, context, WeightGradient::now));
        }
        results.dw = to_double(parameters.flat_grads());
        return results;
    }
    Results want(Products products, DType gradient_format) const {
        const ops::ScaleGroup tokens = group_of_tokens(products),
                              weights = group_of_weights(products);
        const Matrix mx = matrix_of(x), mw = matrix_of(weight()), mdy = matrix_of(dy);
        const auto e4m3 = [](const Matrix& m, ops::ScaleGroup group) {
            return rounded(m, DType::e4m3, group);
        };
        const auto rounded_gradient = [&](const Matrix& m) {
            return rounded(m, gradient_format, tokens);
        };
        Results r{product(e4m3(mx, tokens), e4m3(mw, weights)),
                  product(rounded_gradient(mdy), e4m3(transposed(mw), weights)),
                  product(rounded_gradient(transposed(mdy)), e4m3(transposed(mx), tokens))};
        const Doubles more = to_double(residual);
        for (size_t i = 0; i < more.size(); ++i) r.y[i] += more[i];
        return r;
    }
};

// How far sums in fp32 may be from exact ones. Tensor cores keep some 13 bits of what they add to a
// sum of products in fp8 (07_kernels/6_hopper/7_product_fp8.cu).
double lost_in_sums() { return device_is_gpu() ? 3e-4 : 1e-5; }

TEST(PrecisionLinear, ProductsAreThoseOfTheRoundedNumbers) {
    for (const Products products : {Products::tensor, Products::row, Products::tile})
        for (const DType format : {DType::e4m3, DType::e5m2}) {
            SCOPED_TRACE(int(products));
            Setting setting(products, format, false);
            const Setting::Results got = setting.run(), want = setting.want(products, format);
            // bf16 rounds y and dx to 2^-9; the numbers' own rounding is ten times as large.
            EXPECT_LT(distance(got.y, want.y), 3e-3);
            EXPECT_LT(distance(got.dx, want.dx), 3e-3);
            EXPECT_LT(distance(got.dw, want.dw), lost_in_sums());
            const Doubles unrounded =
                product(transposed(matrix_of(setting.dy)), transposed(matrix_of(setting.x)));
            EXPECT_GT(distance(got.dw, unrounded), 1e-2);
        }
}

TEST(PrecisionLinear, GradientsOfMicroBatchesAddUp) {
    Setting setting(Products::tile, DType::e4m3, false);
    const Doubles once = setting.run().dw, twice = setting.run(2).dw;
    for (size_t i = 0; i < once.size(); ++i) EXPECT_FLOAT_EQ(float(twice[i]), float(2 * once[i]));
}

TEST(PrecisionLinear, InputsKeptIn8BitsGiveTheSameGradients) {
    for (const Products products : {Products::tensor, Products::row, Products::tile}) {
        Setting plain(products, DType::e5m2, false), keeping(products, DType::e5m2, true);
        EXPECT_EQ(plain.run().dw, keeping.run().dw);
        Saved saved;
        Context context;
        keeping.linear->forward(keeping.x, saved, context, {});
        int64_t bytes = 0;
        saved.for_each([&](const std::string&, const Tensor& t) { bytes += t.bytes(); });
        const int64_t scales = products == Products::tile ? h : products == Products::row ? h : 1;
        EXPECT_EQ(bytes, N * h + 4 * scales);
    }
}

// The general linear with one measured scale a tensor does what the plain one does, bit by bit.
TEST(PrecisionLinear, OneScaleATensorIsThePlainLinear) {
    for (const bool keeps : {false, true}) {
        Setting general(Products::tensor, DType::e5m2, keeps),
            plain(Products::tensor, DType::e5m2, keeps);
        PlainFp8Linear linear(plain.linear->parameters());
        plain.parameters.begin_gradients(2);
        Context context;
        Setting::Results got;
        for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
            Saved saved;
            got.y = to_double(linear.forward(plain.x, saved, context, plain.residual));
            EXPECT_EQ(saved.get("x").data(), plain.x.data());
            got.dx = to_double(linear.backward(plain.dy, saved, context, WeightGradient::now));
        }
        got.dw = to_double(plain.parameters.flat_grads());
        const Setting::Results want = general.run(2);
        EXPECT_EQ(got.y, want.y);
        EXPECT_EQ(got.dx, want.dx);
        EXPECT_EQ(got.dw, want.dw);
    }
}

// What a linear that wraps this one calls.
TEST(PrecisionLinear, TheProductsAloneAreTheSame) {
    for (const Products products : {Products::tensor, Products::tile}) {
        Setting setting(products, DType::e4m3, false), alone(products, DType::e4m3, false);
        const Setting::Results want = setting.run();
        alone.parameters.begin_gradients();
        Context context;
        const Tensor y = Tensor::empty({2, N / 2, F}, DType::bf16, Memory::activation),
                     dx = Tensor::empty({2, N / 2, h}, DType::bf16, Memory::activation);
        alone.linear->multiply(y, alone.x, alone.residual);
        alone.linear->multiply_backward(dx, alone.dy);
        alone.linear->add_weight_gradient(alone.dy, alone.x, context);
        EXPECT_EQ(to_double(y), want.y);
        EXPECT_EQ(to_double(dx), want.dx);
        EXPECT_EQ(to_double(alone.parameters.flat_grads()), want.dw);
    }
}

// The head's three products, with the loss in one piece and in chunks of tokens, each of which
// rounds its dlogits and its rows of x by itself.
TEST(PrecisionHead, ProductsAreThoseOfTheRoundedNumbers) {
    constexpr int64_t V = 64;
    for (const Products products : {Products::tensor, Products::row, Products::tile})
        for (const int64_t chunk : {int64_t(0), int64_t(16)}) {
            PrecisionOptions o;
            o.recipe.products = products;
            ParameterList parameters;
            Parameter* weight = parameters.add({.name = "lm_head.weight", .shape = {V, h}});
            parameters.allocate_values(DType::bf16);
            parameters.allocate_grads(DType::fp32);
            ops::copy(parameters.flat_values(),
                      random_tensor("w", {V, h}, DType::bf16).view({V * h}));
            ops::scale(parameters.flat_values(), 0x1p-7f);  // no word's probability is 0
            parameters.begin_gradients(1);
            const Fp8Head<Head> head(std::make_shared<Fp8Shared>(o), weight, chunk);
            Fp8Head<Head> trained(std::make_shared<Fp8Shared>(o), weight, chunk);

            const Tensor x = random_tensor("x", {1, N, h}, DType::bf16);
            std::vector<int32_t> targets;
            for (int64_t i = 0; i < N; ++i) targets.push_back(int32_t(i * 7 % V));
            Context context{.token_weight = 1.0f / N};
            context.batch.tokens = context.batch.targets =
                Tensor::from_host<int32_t>(targets, {1, N}, Memory::workspace);
            context.loss = Tensor::zeros({1}, DType::fp64, Memory::workspace);
            const Matrix w = matrix_of(weight->value), mx = matrix_of(x);
            const ops::ScaleGroup tokens = group_of_tokens(products),
                                  weights = group_of_weights(products);
            const auto e4m3 = [](const Matrix& m, ops::ScaleGroup group) {
                return rounded(m, DType::e4m3, group);
            };
            EXPECT_LT(
                distance(to_double(head.logits(x)), product(e4m3(mx, tokens), e4m3(w, weights))),
                3e-3);

            Saved saved;
            trained.forward(x, saved, context);
            const double loss = context.loss.to_host<double>()[0];
            EXPECT_TRUE(std::isfinite(loss) && loss > 0);
            const int64_t n = chunk > 0 ? chunk : N;
            Doubles dx, dw(size_t(V * h), 0.0);
            for (int64_t begin = 0; begin < N; begin += n) {
                // dlogits as Head::loss leaves them
                const Tensor part = x.view({N, h}).slice(begin, begin + n),
                             logits = head.logits(part),
                             losses = Tensor::empty({n}, DType::fp32, Memory::activation);
                ops::cross_entropy(losses, logits,
                                   context.batch.targets.view({N}).slice(begin, begin + n),
                                   context.token_weight);
                const Matrix d = matrix_of(logits);
                const auto rounded_gradient = [&](const Matrix& m) {
                    return rounded(m, o.gradient_format, tokens);
                };
                const Doubles more = product(rounded_gradient(d), e4m3(transposed(w), weights));
                dx.insert(dx.end(), more.begin(), more.end());
                const Doubles sum = product(rounded_gradient(transposed(d)),
                                            e4m3(transposed(matrix_of(part)), tokens));
                for (size_t i = 0; i < dw.size(); ++i) dw[i] += sum[i];
            }
            const Tensor got = trained.backward(saved, context, WeightGradient::now);
            EXPECT_LT(distance(to_double(got), dx), 3e-3);
            EXPECT_LT(distance(to_double(weight->grad), dw), lost_in_sums());
        }
}

TEST(PrecisionLinear, ADelayedScaleIsThatOfEarlierSteps) {
    Setting delayed(Products::delayed, DType::e5m2, false),
        current(Products::tensor, DType::e5m2, false);
    const Setting::Results want = current.run();
    EXPECT_EQ(delayed.run().y, want.y);  // no history yet: measured
    delayed.shared->histories.end_step(Communicator::world());
    const Setting::Results same = delayed.run();  // the same numbers: the same scales
    EXPECT_EQ(same.y, want.y);
    EXPECT_EQ(same.dx, want.dx);
    EXPECT_EQ(same.dw, want.dw);
    // Four times as large: the scale remembered is too small, and large numbers saturate.
    ops::scale(delayed.x, 4), ops::scale(current.x, 4);
    EXPECT_GT(distance(delayed.run().y, current.run().y), 0.1);
    delayed.shared->histories.end_step(Communicator::world());
    EXPECT_LT(distance(delayed.run().y, current.run().y), 1e-6);
}

TEST(PrecisionLinear, TheLargestMagnitudeOfAStepIsThatOfAllItsMicroBatches) {
    Setting setting(Products::delayed, DType::e5m2, false);
    setting.parameters.begin_gradients(2);
    Context context;
    double largest = 0;
    for (const float factor : {3.0f, 0.5f}) {  // the second one is smaller
        Saved saved;
        ops::scale(setting.x, factor);
        for (double x : to_double(setting.x)) largest = std::max(largest, std::abs(x));
        setting.linear->forward(setting.x, saved, context, {});
        setting.linear->backward(setting.dy, saved, context, WeightGradient::now);
    }
    EXPECT_EQ(double(setting.shared->histories.amax(0).to_host<float>()[0]), largest);
}

}  // namespace
}  // namespace ultrascale
