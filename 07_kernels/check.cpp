#include "check.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "core/ops.h"
#include "core/random.h"
#include "core/stream.h"

namespace ultrascale::kernels {

uint8_t round_to_e4m3(float& x) {
    const float size = std::min(std::abs(x), 448.0f);
    const int exponent = std::max(-6, size > 0 ? std::ilogb(size) : -6);
    const int eighths = int(std::nearbyint(
        std::ldexp(size, 3 - exponent)));  // 8 .. 16; below 8 only where the exponent is -6
    const bool negative = std::signbit(x);
    x = std::copysign(std::ldexp(float(eighths), exponent - 3), x);
    return uint8_t((negative ? 128 : 0) + (exponent + 6) * 8 + eighths);
}

namespace {

// Packs fp8 numbers as described at Input, and rounds `host` to them.
Tensor e4m3_tensor(const Shape& shape, std::vector<float>& host) {
    const int64_t rows = shape[0], K = shape[1], words = (K + 15) / 16 * 4;
    std::vector<int32_t> packed(size_t(rows * words));
    for (int64_t i = 0; i < rows * K; ++i)
        packed[size_t(i / K * words + i % K / 4)] |=
            int32_t(uint32_t(round_to_e4m3(host[size_t(i)])) << (i % K % 4 * 8));
    return Tensor::from_host<int32_t>(packed, {rows, words}, Memory::workspace);
}

Tensor random_tensor(const Input& input, const Random& random, std::vector<float>& host) {
    const int64_t n = numel(input.shape);
    host.assign(size_t(n), 0);
    for (int64_t i = 0; i < input.spread; ++i)
        ++host[size_t(random.bits(uint64_t(i)) % uint64_t(n))];
#pragma omp parallel for
    for (int64_t i = 0; i < (input.spread > 0 ? 0 : n); ++i) {
        float x = input.below > 0 ? float(random.bits(uint64_t(i)) % uint64_t(input.below))
                                  : random.normal(uint64_t(i));
        if (input.positive) x = std::abs(x);
        if (input.octaves > 0) x = float(std::exp2(input.octaves * x));
        host[size_t(i)] = input.dtype == DType::bf16 ? float(bf16(x)) : x;
    }
    if (input.e4m3) return e4m3_tensor(input.shape, host);
    const auto as = [&]<class T>(T) {
        std::vector<T> values;
        values.reserve(size_t(n));
        for (float x : host) values.push_back(T(x));
        return Tensor::from_host<T>(values, input.shape, Memory::workspace);
    };
    if (input.dtype == DType::int32) return as(int32_t{});
    if (input.dtype == DType::bf16) return as(bf16{});
    return Tensor::from_host<float>(host, input.shape, Memory::workspace);
}

}  // namespace

Trial make_trial(const Problem& problem, const Sizes& size, uint64_t seed) {
    Trial trial;
    trial.arguments.size = size;
    for (const Input& input : problem.inputs(size)) {
        const Random random(seed, fmt::format("{} {}", problem.name, trial.inputs.size()));
        trial.arguments.in.push_back(random_tensor(input, random, trial.inputs.emplace_back()));
    }
    const Input output = problem.output(size);
    trial.arguments.out = Tensor::empty(output.shape, output.dtype, Memory::workspace);
    return trial;
}

Answer answer_of(const Problem& problem, const Trial& trial, bool all_rows) {
    const int64_t rows = trial.arguments.out.rows(), columns = trial.arguments.out.cols(),
                  count = all_rows ? rows : std::min<int64_t>(rows, 16);
    Answer answer{std::vector<int64_t>(size_t(count)),
                  std::vector<double>(size_t(count * columns))};
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = answer.rows[size_t(i)] =
            count == rows ? i : i * (rows - 1) / (count - 1);
        problem.reference(trial.arguments.size, trial.inputs, row,
                          &answer.values[size_t(i * columns)]);
    }
    return answer;
}

double error_of(const std::function<void(const Arguments&)>& run, const Trial& trial,
                const Answer& answer) {
    const Tensor& out = trial.arguments.out;
    ops::fill(out, std::numeric_limits<float>::quiet_NaN());
    run(trial.arguments);
    compute_stream().synchronize();
    const std::vector<float> got = out.to_host_float();
    bool finite = true;
#pragma omp parallel for reduction(&& : finite)
    for (size_t i = 0; i < got.size(); ++i) finite = finite && std::isfinite(got[i]);
    if (!finite) return std::numeric_limits<double>::quiet_NaN();
    const int64_t columns = out.cols();
    constexpr int64_t piece = 256;
    double worst = 0;
#pragma omp parallel for reduction(max : worst)
    for (size_t i = 0; i < answer.rows.size(); ++i) {
        const float* const has = &got[size_t(answer.rows[i] * columns)];
        const double* const want = &answer.values[i * size_t(columns)];
        for (int64_t begin = 0; begin < columns; begin += piece) {
            double difference = 0, norm = 0;
            for (int64_t c = begin; c < std::min(begin + piece, columns); ++c) {
                const double d = has[c] - want[c];
                difference += d * d, norm += want[c] * want[c];
            }
            worst = std::max(worst, difference == 0 ? 0 : std::sqrt(difference / norm));
        }
    }
    return worst;
}

std::string verdict(const Problem& problem, const Sizes& size, double error) {
    if (std::isnan(error))
        return fmt::format("{}: part of the output was not written, or is not a number",
                           text(problem, size));
    if (error > problem.tolerance)
        return fmt::format("{}: relative error {:.1e} > {:.0e}", text(problem, size), error,
                           problem.tolerance);
    return "";
}

std::string text(const Problem& problem, const Sizes& size) {
    std::string all;
    for (size_t i = 0; i < size.size(); ++i)
        all += fmt::format("{}{} {}", i ? ", " : "", problem.dimensions[i], size[i]);
    return all;
}

}  // namespace ultrascale::kernels
