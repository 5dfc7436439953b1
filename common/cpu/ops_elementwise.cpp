// Element-wise operations, conversions and sums.
#include <cfloat>
#include <cstring>

#include "core/ops_list.h"
#include "ops_common.h"

namespace ultrascale::ops {

namespace {

template <class To, class From>
void convert_elements(To* to, const From* from, int64_t n) {
#pragma omp parallel for simd if (n > parallel_threshold)
    for (int64_t i = 0; i < n; ++i) store(to[i], float(from[i]));
}

void copy_bytes(char* to, const char* from, int64_t bytes) {
    constexpr int64_t block = 1 << 18;
#pragma omp parallel for if (bytes > block)
    for (int64_t i = 0; i < bytes; i += block)
        std::memmove(to + i, from + i, size_t(std::min(block, bytes - i)));
}

template <class Y, class A, class X>
void add_elements(Y* y, const A* a, const X* x, float alpha, int64_t n) {
#pragma omp parallel for simd if (n > parallel_threshold)
    for (int64_t i = 0; i < n; ++i) store(y[i], float(a[i]) + alpha * float(x[i]));
}

template <class T>
void scale_elements(T* x, float alpha, int64_t n) {
#pragma omp parallel for simd if (n > parallel_threshold)
    for (int64_t i = 0; i < n; ++i) store(x[i], float(x[i]) * alpha);
}

template <class T>
void fill_elements(T* x, float value, int64_t n) {
#pragma omp parallel for simd if (n > parallel_threshold)
    for (int64_t i = 0; i < n; ++i) store(x[i], value);
}

// The sum of x (or of x^2) over one block, in double.
template <bool squares, class T>
double block_sum(const T* x, int64_t n) {
    double sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; ++i)
        sum += squares ? double(float(x[i])) * double(float(x[i])) : double(float(x[i]));
    return sum;
}

template <bool squares>
double sum_in_blocks(const Tensor& x) {
    constexpr int64_t block = 16384;
    const int64_t n = x.numel(), blocks = (n + block - 1) / block;
    Tensor partial = Tensor::empty({blocks}, DType::fp64, Memory::workspace);
    double* sums = partial.as<double>();
    with_any_float(x.dtype(), [&]<class T>(T) {
        const T* values = x.as<T>();
#pragma omp parallel for if (blocks > 1)
        for (int64_t i = 0; i < blocks; ++i)
            sums[i] = block_sum<squares>(values + i * block, std::min(block, n - i * block));
    });
    double sum = 0;
    for (int64_t i = 0; i < blocks; ++i) sum += sums[i];
    return sum;
}

}  // namespace

void convert(Tensor to, const Tensor& from) {
    check(to.numel() == from.numel(), "copy: sizes differ");
    if (to.dtype() == from.dtype()) {
        copy_bytes(static_cast<char*>(to.data()), static_cast<const char*>(from.data()),
                   to.bytes());
    } else {
        with_any_float(to.dtype(), [&]<class To>(To) {
            with_any_float(from.dtype(), [&]<class From>(From) {
                convert_elements(to.as<To>(), from.as<From>(), to.numel());
            });
        });
    }
}

void copy(Tensor to, const Tensor& from) {
    OpSpan span("copy", 0, bytes_of(to, from));
    convert(to, from);
}

void fill(Tensor x, float value) {
    OpSpan span("fill", 0, bytes_of(x));
    with_any_float(x.dtype(), [&]<class T>(T) { fill_elements(x.as<T>(), value, x.numel()); });
}

void add(Tensor y, const Tensor& x, float alpha) {
    check(y.numel() == x.numel(), "add: sizes differ");
    OpSpan span("add", 2.0 * double(y.numel()), bytes_of(y, y, x));
    with_type(y.dtype(), [&]<class Y>(Y) {
        with_type(x.dtype(), [&]<class X>(X) {
            add_elements(y.as<Y>(), y.as<Y>(), x.as<X>(), alpha, y.numel());
        });
    });
}

void add(Tensor y, const Tensor& a, const Tensor& b) {
    check(y.numel() == a.numel() && y.numel() == b.numel(), "add: sizes differ");
    OpSpan span("add", double(y.numel()), bytes_of(y, a, b));
    with_type(y.dtype(), [&]<class Y>(Y) {
        with_type(b.dtype(), [&]<class X>(X) {
            add_elements(y.as<Y>(), a.as<float>(), b.as<X>(), 1, y.numel());
        });
    });
}

void scale(Tensor x, float alpha) {
    OpSpan span("scale", double(x.numel()), bytes_of(x, x));
    with_type(x.dtype(), [&]<class T>(T) { scale_elements(x.as<T>(), alpha, x.numel()); });
}

void accumulate_sum(Tensor total, const Tensor& x, double factor) {
    check(total.numel() == 1, "accumulate_sum: total is one number");
    OpSpan span("accumulate_sum", double(x.numel()), bytes_of(x));
    *total.as<double>() += factor * sum_in_blocks<false>(x);
}

void accumulate_sum_squares(Tensor total, const std::vector<Tensor>& xs) {
    check(total.numel() == 1, "accumulate_sum_squares: total is one number");
    const ListSizes n = list_sizes(xs, "accumulate_sum_squares: one dtype");
    OpSpan span("accumulate_sum_squares", 2.0 * n.elements, n.bytes);
    for (const Tensor& x : xs) *total.as<double>() += sum_in_blocks<true>(x);
}

void find_not_finite(Tensor found, const std::vector<Tensor>& xs) {
    check(found.numel() == 1, "find_not_finite: found is one number");
    OpSpan span("find_not_finite", 0, list_sizes(xs, "find_not_finite: one dtype").bytes);
    for (const Tensor& x : xs)
        with_any_float(x.dtype(), [&]<class T>(T) {
            const T* values = x.as<T>();
            int bad = 0;
#pragma omp parallel for simd reduction(| : bad) if (x.numel() > parallel_threshold)
            for (int64_t i = 0; i < x.numel(); ++i) bad |= !(std::abs(float(values[i])) <= FLT_MAX);
            if (bad) *found.as<int32_t>() = 1;
        });
}

}  // namespace ultrascale::ops
