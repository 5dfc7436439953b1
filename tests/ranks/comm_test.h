// Expected results for comm_test.cpp on every backend: each rank's numbers, their reductions, and
// the ways that data can travel.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include "comm/comm_transport.h"
#include "core/device.h"

namespace ultrascale {

inline const bool on_gpu = device_is_gpu();

using CommunicatedTypes = testing::Types<float, bf16, fp16, e4m3, e5m2, double, int32_t>;

inline const Communicator& world() { return Communicator::world(); }

// Returns whether reductions add in rank order, bit by bit. Otherwise NCCL adds, in an order of its
// own.
inline bool exact() { return transport::over_mpi() || world().size() == 1; }
inline const std::vector<Reduce> operations = {Reduce::sum, Reduce::max, Reduce::average};

// Returns rank r's numbers. They use all of their bits at very different magnitudes, so that
// another order of summation gives other bits; sums of int32 overflow.
template <class T>
const std::vector<T>& numbers(int r, int64_t count, int seed = 0) {
    // the tests ask for the same numbers again and again
    static std::map<std::tuple<int, int64_t, int>, std::vector<T>> made;
    std::vector<T>& values = made[{r, count, seed}];
    if (int64_t(values.size()) == count) return values;
    values.resize(count);
    std::minstd_rand random(1 + r + 1000 * seed);
    for (T& value : values) {
        int mantissa = int(random() % (1 << 24)) - (1 << 23), exponent = int(random() % 12);
        double real =
            std::ldexp(mantissa + 1.0 / 3, -11 - exponent);  // up to 4096: 8 of them fit fp16
        if constexpr (std::is_same_v<T, int32_t>)
            value = mantissa * 200;
        else if constexpr (std::is_same_v<T, double>)
            value = real;
        else
            value = T(float(sizeof(T) == 1 ? real / 128 : real));  // up to 32, as e4m3 ends at 448
    }
    return values;
}

template <class T>
std::vector<T> reduced(Reduce op, int n, int64_t count, int seed = 0, bool backwards = false) {
    using Wide = std::conditional_t<std::is_same_v<T, int32_t>, int64_t,
                                    std::conditional_t<std::is_same_v<T, double>, double, float>>;
    std::vector<Wide> sum(count);
    for (int k = 0; k < n; ++k) {
        const std::vector<T>& x = numbers<T>(backwards ? n - 1 - k : k, count, seed);
        for (int64_t i = 0; i < count; ++i) {
            sum[i] = k == 0              ? Wide(x[i])
                     : op == Reduce::max ? std::max(sum[i], Wide(x[i]))
                                         : sum[i] + Wide(x[i]);
        }
    }
    std::vector<T> result(count);
    for (int64_t i = 0; i < count; ++i)
        result[i] = T(op == Reduce::average ? sum[i] / Wide(n) : sum[i]);
    return result;
}

template <class T>
Tensor tensor(const std::vector<T>& values) {
    return Tensor::from_host<T>(values, {int64_t(values.size())}, Memory::workspace);
}

template <class T>
Tensor blank(int64_t count) {
    return Tensor::zeros({count}, dtype_of<T>, Memory::workspace);
}

template <class T>
bool same(const Tensor& a, const std::vector<T>& b) {
    return a.numel() == int64_t(b.size()) &&
           (b.empty() || std::memcmp(a.to_host<T>().data(), b.data(), a.bytes()) == 0);
}

template <class T>
T first(const Tensor& x) {
    return x.to_host<T>().at(0);
}

// Returns whether x is the reduction of numbers(r, count) from element `begin` on. It must be
// exact; or, if NCCL reduced, within one rounding error of the sum of the magnitudes per rank.
template <class T>
bool is_reduction(const Tensor& x, Reduce op, int64_t count, int seed = 0, int64_t begin = 0) {
    int n = world().size();
    std::vector<T> all = reduced<T>(op, n, count, seed),
                   wanted(all.begin() + begin, all.begin() + begin + x.numel());
    if (exact() || op == Reduce::max) return same(x, wanted);
    std::vector<T> got = x.to_host<T>();
    if constexpr (std::is_same_v<T, int32_t>) {
        std::vector<uint32_t> sum(count);  // wraps around
        for (int r = 0; r < n; ++r) {
            const std::vector<T>& more = numbers<T>(r, count, seed);
            for (int64_t i = 0; i < count; ++i) sum[i] += uint32_t(more[i]);
        }
        if (op == Reduce::average) return true;  // NCCL does not specify it
        return got.empty() || std::memcmp(got.data(), sum.data() + begin, x.bytes()) == 0;
    } else {
        using Real = std::conditional_t<std::is_same_v<T, double>, double, float>;
        constexpr int digits = std::is_same_v<T, double>  ? 53
                               : std::is_same_v<T, float> ? 24
                               : std::is_same_v<T, fp16>  ? 11
                               : std::is_same_v<T, e4m3>  ? 4
                               : std::is_same_v<T, e5m2>  ? 3
                                                          : 8;
        std::vector<double> magnitude(count);
        for (int r = 0; r < n; ++r) {
            const std::vector<T>& more = numbers<T>(r, count, seed);
            for (int64_t i = 0; i < count; ++i) magnitude[i] += std::abs(double(Real(more[i])));
        }
        const double subnormal = std::ldexp(n, std::is_same_v<T, fp16>   ? -24
                                               : std::is_same_v<T, e4m3> ? -9
                                               : std::is_same_v<T, e5m2> ? -16
                                                                         : -149);
        for (int64_t i = 0; i < x.numel(); ++i) {
            double off = std::abs(double(Real(got[i])) - double(Real(wanted[i])));
            double allowed =
                std::ldexp(n * magnitude[begin + i], -digits) / (op == Reduce::average ? n : 1) +
                subnormal;
            if (!(off <= allowed)) return false;
        }
        return true;
    }
}

template <class T>
std::vector<T> part(const std::vector<T>& all, int64_t begin, int64_t count) {
    return {all.begin() + begin, all.begin() + begin + count};
}

template <class T>
std::vector<T> joined(int n, int64_t count) {  // all ranks' numbers
    std::vector<T> all;
    for (int r = 0; r < n; ++r) {
        for (T value : numbers<T>(r, count)) all.push_back(value);
    }
    return all;
}

// Sets one of the ways that data can travel: as set already, everything in chunks, everything in
// one round, in pieces.
struct Way {
    CommunicationSettings saved = communication_settings();
    explicit Way(CommunicationSettings settings) { communication_settings() = settings; }
    ~Way() { communication_settings() = saved; }
};
inline const std::vector<CommunicationSettings> ways = {
    {}, {1 << 30, 0, 4096}, {1 << 30, 1 << 30, 1 << 30}, {1001, 512, 4096}};

// The last size is long enough for several chunks and pieces, and divisible by no number of ranks.
inline std::vector<int64_t> sizes(const CommunicationSettings& settings) {
    return {0, 1, 7, 1000, settings.chunk_bytes == 4096 ? 5003 : 65537};
}

// Ranks other than 0 print only failures.
class FailuresOnly : public testing::EmptyTestEventListener {
    std::string test_;

    void OnTestStart(const testing::TestInfo& test) override {
        test_ = std::string(test.test_suite_name()) + "." + test.name();
    }
    void OnTestPartResult(const testing::TestPartResult& result) override {
        if (!result.failed()) return;
        std::fprintf(stderr, "rank %d, %s: %s:%d: %s\n", world().rank(), test_.c_str(),
                     result.file_name(), result.line_number(), result.message());
    }
};

}  // namespace ultrascale
