// Tests Muon's operations, and the orthogonalization that they make with matrix products.
#include "core/ops_muon.h"

#include "core/trace.h"
#include "model/muon.h"
#include "test_util.h"

namespace ultrascale {
namespace {

Tensor squared_norm_of(const Doubles& values) {
    double sum = 0;
    for (const double v : values) sum += v * v;
    Tensor norm = Tensor::empty({1}, DType::fp64, Memory::workspace);
    norm.copy_from_host(&sum);
    return norm;
}

TEST(OpsMuon, MomentumAndMove) {
    for (const DType dtype : {DType::fp32, DType::bf16})
        for (const float max_norm : {0.0f, 0.5f}) {
            const int64_t n = 1037;
            const Tensor momentum = random_tensor({n}, DType::fp32, 1),
                         gradient = random_tensor({n}, dtype, 2),
                         direction = poisoned({n}, DType::fp32);
            const Doubles before = to_double(momentum), g = to_double(gradient);
            const double norm = std::sqrt(to_double(squared_norm_of(g))[0]),
                         clip = max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1;
            Doubles want_momentum(n), want_direction(n);
            for (size_t i = 0; i < size_t(n); ++i) {
                want_momentum[i] = 0.9 * before[i] + 0.1 * clip * g[i];
                want_direction[i] = 0.1 * clip * g[i] + 0.9 * want_momentum[i];
            }
            ops::nesterov(direction, momentum, gradient, 0.9f, squared_norm_of(g), max_norm);
            EXPECT_LT(relative_error(momentum, want_momentum), 2e-6);
            EXPECT_LT(relative_error(direction, want_direction), 2e-6);

            // The weights: an fp32 value is its own master.
            const Tensor master = random_tensor({n}, DType::fp32, 3),
                         value = dtype == DType::fp32 ? master : poisoned({n}, dtype);
            Doubles want = to_double(master);
            for (size_t i = 0; i < size_t(n); ++i) want[i] = 0.99 * want[i] - 0.02 * g[i];
            ops::move_weights(value, master, gradient, 0.99f, 0.02f);
            EXPECT_LT(relative_error(master, want), 2e-6);
            EXPECT_LT(relative_error(value, want), tolerance(dtype));
        }
}

// The singular values of a diagonal matrix are its elements, and each goes its own way through the
// polynomial.
TEST(OpsMuon, OrthogonalizesADiagonalMatrixElementByElement) {
    for (const Shape& shape : {Shape{6, 6}, Shape{6, 11}, Shape{11, 6}}) {
        std::vector<float> x(size_t(numel(shape)));
        Doubles want(x.size());
        const double s[] = {3, 2, 1, 0.3, 0.02, 0};
        double norm = 0;
        for (const double v : s) norm += v * v;
        for (size_t i = 0; i < 6; ++i) {
            double v = s[i] / std::sqrt(norm);
            for (int step = 0; step < 5; ++step)
                v = 3.4445 * v - 4.7750 * std::pow(v, 3) + 2.0315 * std::pow(v, 5);
            x[i * size_t(shape[1]) + i] = float(s[i]);
            want[i * size_t(shape[1]) + i] = v;
            EXPECT_NEAR(v, s[i] > 0.01 ? 1 : 0, 0.35) << "a singular value of " << s[i];
        }
        Tensor matrix = Tensor::empty(shape, DType::fp32, Memory::workspace);
        matrix.copy_from_host(x.data());
        const Doubles values(x.begin(), x.end());
        EXPECT_LT(
            relative_error(orthogonalized(matrix, squared_norm_of(values), DType::fp32), want),
            1e-5);
        EXPECT_LT(
            relative_error(orthogonalized(matrix, squared_norm_of(values), DType::bf16), want),
            3e-2);
    }
}

// Whatever the matrix: Q^T X is symmetric and positive if Q is U V^T, as V S V^T is.
TEST(OpsMuon, OrthogonalizesAnyMatrix) {
    const int64_t rows = 40, columns = 24;
    const Tensor x = random_tensor({rows, columns}, DType::fp32, 4);
    const Doubles a = to_double(x),
                  q = to_double(orthogonalized(x, squared_norm_of(a), DType::fp32));
    const auto product = [&](const Doubles& left, const Doubles& right, int64_t i, int64_t j) {
        double sum = 0;
        for (int64_t r = 0; r < rows; ++r)
            sum += left[size_t(r * columns + i)] * right[size_t(r * columns + j)];
        return sum;
    };
    for (int64_t i = 0; i < columns; ++i) {
        EXPECT_NEAR(product(q, q, i, i), 0.9, 0.5);
        EXPECT_GT(product(q, a, i, i), 0);
        for (int64_t j = 0; j < i; ++j) EXPECT_NEAR(product(q, a, i, j), product(q, a, j, i), 1e-4);
    }
    EXPECT_EQ(Muon::flops({rows, columns}), 5 * (4 * 24 * 24 * 40 + 2 * 24 * 24 * 24));
}

// The products that the operations say they make cost what the formula says.
TEST(OpsMuon, FlopsAreThoseOfTheFormula) {
    for (const Shape& shape : {Shape{12, 20}, Shape{20, 12}, Shape{8, 8}}) {
        const Tensor x = random_tensor(shape, DType::fp32, 5);
        trace_clear(), trace_record(true);
        orthogonalized(x, squared_norm_of(to_double(x)), DType::fp32);
        trace_record(false);
        double flops = 0;
        for (const Span& span : trace_spans())
            if (span.name == "matmul") flops += span.flops;
        trace_clear();
        EXPECT_EQ(flops, double(Muon::flops(shape)));
    }
}

}  // namespace
}  // namespace ultrascale
