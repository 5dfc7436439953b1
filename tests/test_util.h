// Shared by the unit tests: random tensors, tensors as doubles, one measure of error, and numerical
// gradients.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "core/tensor.h"

namespace ultrascale {

using Doubles = std::vector<double>;

inline Doubles to_double(const Tensor& t) {
    if (t.dtype() == DType::fp64) return t.to_host<double>();
    const auto doubles = [](const auto& values) { return Doubles(values.begin(), values.end()); };
    return t.dtype() == DType::int32 ? doubles(t.to_host<int32_t>()) : doubles(t.to_host_float());
}

inline Tensor tensor_of(const Doubles& values, Shape shape, DType dtype,
                        Memory category = Memory::activation) {
    auto make = [&]<class T>(T) {
        std::vector<T> narrow(values.size());
        for (size_t i = 0; i < values.size(); ++i) narrow[i] = T(float(values[i]));
        return Tensor::from_host<T>(narrow, shape, category);
    };
    if (dtype == DType::fp64) return Tensor::from_host<double>(values, shape, category);
    if (dtype == DType::bf16) return make(bf16{});
    if (dtype == DType::fp16) return make(fp16{});
    if (dtype == DType::e4m3) return make(e4m3{});
    if (dtype == DType::e5m2) return make(e5m2{});
    return make(float{});
}

// Returns standard normal numbers, rounded to the dtype.
inline Tensor random_tensor(Shape shape, DType dtype, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::normal_distribution<double> normal;
    Doubles values(size_t(numel(shape)));
    for (double& x : values) x = normal(generator);
    return tensor_of(values, shape, dtype);
}

// Returns int32 in [low, high].
inline Tensor random_integers(Shape shape, int32_t low, int32_t high, uint64_t seed) {
    std::mt19937_64 generator(seed);
    std::uniform_int_distribution<int32_t> uniform(low, high);
    std::vector<int32_t> values(size_t(numel(shape)));
    for (int32_t& x : values) x = uniform(generator);
    return Tensor::from_host<int32_t>(values, shape, Memory::activation);
}

inline Tensor integers(const std::vector<int32_t>& values, Shape shape) {
    return Tensor::from_host<int32_t>(values, std::move(shape), Memory::activation);
}

// Returns an output that nobody has written yet: full of NaN.
inline Tensor poisoned(Shape shape, DType dtype) {
    return tensor_of(Doubles(size_t(numel(shape)), std::nan("")), shape, dtype);
}

// Returns |got - want| / |want| in the Euclidean norm (|got| if want is zero), or infinity if there
// is a NaN or the sizes differ.
inline double relative_error(const Doubles& got, const Doubles& want) {
    if (got.size() != want.size()) return INFINITY;
    double difference = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] == want[i]) {  // also infinities
            norm += std::isfinite(want[i]) ? want[i] * want[i] : 0;
            continue;
        }
        difference += (got[i] - want[i]) * (got[i] - want[i]);
        norm += want[i] * want[i];
    }
    const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
    return std::isnan(error) ? INFINITY : error;
}
inline double relative_error(const Tensor& got, const Doubles& want) {
    return relative_error(to_double(got), want);
}

inline double dot(const Doubles& a, const Doubles& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

// Returns d f / d x by central differences in double precision.
inline Doubles numerical_gradient(const std::function<double(const Doubles&)>& f, Doubles x) {
    constexpr double step = 1e-5;
    Doubles gradient;
    for (double& value : x) {
        const double kept = value;
        value = kept + step;
        const double above = f(x);
        value = kept - step;
        gradient.push_back((above - f(x)) / (2 * step));
        value = kept;
    }
    return gradient;
}

// Returns the relative error that one operation may have: of sums in fp32, or of one rounding to
// bf16 (the inputs are exact).
inline double tolerance(DType dtype) { return dtype == DType::fp32 ? 2e-6 : 5e-3; }

}  // namespace ultrascale
