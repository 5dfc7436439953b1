// Element-wise operations, conversions and sums.
//
// All of them are memory-bound: each element of each input is read once, and each output is written
// once (cudaMemcpyAsync does copies without conversion). A thread has four packs of up to 16 bytes
// of each input in flight before it uses the first.
//
// Sums are the same in every run: chunks of a fixed size are summed in fp64 by one block each, and
// one block adds the chunks' sums in order. No atomics.
#include "core/ops_list.h"
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256, unroll = 4;

// The operation on an element a (y's own, unless a sum has another destination) and the
// corresponding element x, and which of the two it reads.
struct Fill {
    static constexpr bool reads_x = false, reads_a = false;
    float value;
    __device__ float operator()(float, float) const { return value; }
};
struct Convert {
    static constexpr bool reads_x = true, reads_a = false;
    __device__ float operator()(float, float x) const { return x; }
};
struct Scale {
    static constexpr bool reads_x = false, reads_a = true;
    float alpha;
    __device__ float operator()(float a, float) const { return a * alpha; }
};
struct Add {
    static constexpr bool reads_x = true, reads_a = true;
    float alpha;
    __device__ float operator()(float a, float x) const { return a + alpha * x; }
};

template <int n, class Y, class A, class X, class Op>
__global__ void __launch_bounds__(threads)
    map_kernel(Y* y, const A* a, const X* x, int64_t count, Op op) {
    const int64_t first =
        (int64_t(blockIdx.x) * unroll * threads + threadIdx.x) * n;  // this thread's first pack
    constexpr int64_t stride = int64_t(threads) * n;                 // distance to its next pack
    if (first + (unroll - 1) * stride + n <= count) {
        Pack<A, n> as[unroll];
        Pack<X, n> xs[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            if constexpr (Op::reads_x) xs[u] = load<n>(x + first + u * stride);
            if constexpr (Op::reads_a) as[u] = load<n>(a + first + u * stride);
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            Pack<Y, n> ys;
#pragma unroll
            for (int j = 0; j < n; ++j) {
                float a_value = 0, x_value = 0;
                if constexpr (Op::reads_a) a_value = to_float(as[u].x[j]);
                if constexpr (Op::reads_x) x_value = to_float(xs[u].x[j]);
                ys.x[j] = from_float<Y>(op(a_value, x_value));
            }
            store(y + first + u * stride, ys);
        }
        return;
    }
    for (int u = 0; u < unroll; ++u)  // at the end of the tensor
        for (int j = 0; j < n; ++j) {
            const int64_t i = first + u * stride + j;
            if (i >= count) continue;
            float a_value = 0, x_value = 0;
            if constexpr (Op::reads_a) a_value = to_float(a[i]);
            if constexpr (Op::reads_x) x_value = to_float(x[i]);
            y[i] = from_float<Y>(op(a_value, x_value));
        }
}

// y[i] = op(a[i], x[i]) for all i < count
template <class Y, class A, class X, class Op>
void map(Y* y, const A* a, const X* x, int64_t count, Op op) {
    constexpr int n = std::min({pack_size<Y>, pack_size<A>, pack_size<X>});
    if (aligned16({y, a, x}))
        LAUNCH((map_kernel<n, Y, A, X, Op>), unsigned(ceil_div(count, unroll * threads * n)),
               threads, 0)
    (y, a, x, count, op);
    else LAUNCH((map_kernel<1, Y, A, X, Op>), unsigned(ceil_div(count, unroll * threads)), threads,
                0)(y, a, x, count, op);
}
template <class Y, class X, class Op>
void map(Y* y, const X* x, int64_t count, Op op) {
    map(y, y, x, count, op);
}

// ---- sums ---------------------------------------------------------------------------------------
constexpr int64_t chunk_size = 32768;  // elements that one block sums

struct SumItem {
    const void* x;
    int64_t count, first_chunk;
};

// Calls take(value) for each of this thread's elements of a chunk.
template <int n, class T, class Take>
__device__ void for_each_element(const T* x, int64_t count, const Take& take) {
    const int64_t packs = count / n;
    for (int64_t first = threadIdx.x; first < packs; first += unroll * threads) {
        Pack<T, n> values[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            if (first + u * threads < packs) values[u] = load<n>(x + (first + u * threads) * n);
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            if (first + u * threads < packs)
#pragma unroll
                for (int j = 0; j < n; ++j) take(to_float(values[u].x[j]));
    }
    if (packs * n + threadIdx.x < count)
        take(to_float(x[packs * n + threadIdx.x]));  // fewer than n are left, and n < threads
}

// Calls take(value) for the block's chunk of its item.
template <class T, class Take>
__device__ void for_each_of_chunk(const SumItem* items, int item_count, const Take& take) {
    const int64_t chunk = blockIdx.x;
    const SumItem item = items[item_of_chunk(items, item_count, chunk)];
    const int64_t begin = (chunk - item.first_chunk) * chunk_size;
    const T* x = static_cast<const T*>(item.x) + begin;
    const int64_t count = min(chunk_size, item.count - begin);
    if (reinterpret_cast<uintptr_t>(x) % 16 == 0)
        for_each_element<pack_size<T>>(x, count, take);
    else
        for_each_element<1>(x, count, take);
}

template <bool squares, class T>
__global__ void __launch_bounds__(threads)
    sum_chunks(double* partial, const SumItem* items, int item_count) {
    double sum = 0;
    for_each_of_chunk<T>(items, item_count, [&](float value) {
        const double v = double(value);
        sum += squares ? v * v : v;
    });
    sum = block_sum<threads>(sum);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

template <class T>
__global__ void __launch_bounds__(threads)
    find_chunks(int32_t* found, const SumItem* items, int item_count) {
    bool bad = false;
    for_each_of_chunk<T>(items, item_count,
                         [&](float value) { bad |= !(fabsf(value) < INFINITY); });
    if (bad) *found = 1;  // every other thread that writes here writes the same value
}

constexpr int total_threads = 1024;

__global__ void __launch_bounds__(total_threads)
    add_partials(double* total, const double* partial, int64_t count, double factor) {
    double sum = 0;
#pragma unroll 8
    for (int64_t i = threadIdx.x; i < count; i += total_threads) sum += partial[i];
    sum = block_sum<total_threads>(sum);
    if (threadIdx.x == 0) *total += factor * sum;
}

// The tensors as a list; returns the number of their chunks.
int64_t list_chunks(std::vector<SumItem>& items, const std::vector<Tensor>& xs) {
    int64_t chunks = 0;
    for (const Tensor& x : xs) {
        items.push_back({x.data(), x.numel(), chunks});
        chunks += ceil_div(x.numel(), chunk_size);
    }
    return chunks;
}

template <bool squares>
void add_sums(const Tensor& total, const std::vector<Tensor>& xs, double factor) {
    std::vector<SumItem> items;
    const int64_t chunks = list_chunks(items, xs);
    if (chunks == 0) return;
    const Tensor list = list_on_device(items),
                 partial = Tensor::empty({chunks}, DType::fp64, Memory::workspace);
    double* sums = partial.as<double>();
    with_any_float(xs[0].dtype(), [&]<class T>(T) {
        LAUNCH((sum_chunks<squares, T>), unsigned(chunks), threads, 0)
        (sums, static_cast<const SumItem*>(list.data()), int(items.size()));
    });
    LAUNCH(add_partials, 1, total_threads, 0)(total.as<double>(), sums, chunks, factor);
}

}  // namespace

void copy(Tensor to, const Tensor& from) {
    OpSpan span("copy", 0, bytes_of(to, from));
    check(to.numel() == from.numel(), "copy: sizes differ");
    if (to.numel() == 0) return;
    if (to.dtype() == from.dtype()) {
        cuda_check(cudaMemcpyAsync(to.data(), from.data(), size_t(to.bytes()),
                                   cudaMemcpyDeviceToDevice, cuda_compute()));
    } else {
        with_any_float(to.dtype(), [&]<class To>(To) {
            with_any_float(from.dtype(), [&]<class From>(From) {
                if constexpr (!std::is_same_v<To, From>)
                    map(data<To>(to), data<From>(from), to.numel(), Convert{});
            });
        });
    }
}

void fill(Tensor x, float value) {
    OpSpan span("fill", 0, bytes_of(x));
    with_any_float(x.dtype(),
                   [&]<class T>(T) { map(data<T>(x), data<T>(x), x.numel(), Fill{value}); });
}

void add(Tensor y, const Tensor& x, float alpha) {
    check(y.numel() == x.numel(), "add: sizes differ");
    OpSpan span("add", 2.0 * double(y.numel()), bytes_of(y, y, x));
    with_type(y.dtype(), [&]<class Y>(Y) {
        with_type(x.dtype(),
                  [&]<class X>(X) { map(data<Y>(y), data<X>(x), y.numel(), Add{alpha}); });
    });
}

void add(Tensor y, const Tensor& a, const Tensor& b) {
    check(y.numel() == a.numel() && y.numel() == b.numel(), "add: sizes differ");
    OpSpan span("add", double(y.numel()), bytes_of(y, a, b));
    with_type(y.dtype(), [&]<class Y>(Y) {
        with_type(b.dtype(), [&]<class X>(X) {
            map(data<Y>(y), data<float>(a), data<X>(b), y.numel(), Add{1});
        });
    });
}

void scale(Tensor x, float alpha) {
    OpSpan span("scale", double(x.numel()), bytes_of(x, x));
    with_type(x.dtype(), [&]<class T>(T) { map(data<T>(x), data<T>(x), x.numel(), Scale{alpha}); });
}

void accumulate_sum(Tensor total, const Tensor& x, double factor) {
    check(total.numel() == 1, "accumulate_sum: total is one number");
    OpSpan span("accumulate_sum", double(x.numel()), bytes_of(x));
    add_sums<false>(total, {x}, factor);
}

void accumulate_sum_squares(Tensor total, const std::vector<Tensor>& xs) {
    check(total.numel() == 1, "accumulate_sum_squares: total is one number");
    const ListSizes n = list_sizes(xs, "accumulate_sum_squares: one dtype");
    OpSpan span("accumulate_sum_squares", 2.0 * n.elements, n.bytes);
    add_sums<true>(total, xs, 1);
}

void find_not_finite(Tensor found, const std::vector<Tensor>& xs) {
    check(found.numel() == 1, "find_not_finite: found is one number");
    OpSpan span("find_not_finite", 0, list_sizes(xs, "find_not_finite: one dtype").bytes);
    std::vector<SumItem> items;
    const int64_t chunks = list_chunks(items, xs);
    if (chunks == 0) return;
    const Tensor list = list_on_device(items);
    with_any_float(xs[0].dtype(), [&]<class T>(T) {
        LAUNCH(find_chunks<T>, unsigned(chunks), threads, 0)
        (found.as<int32_t>(), static_cast<const SumItem*>(list.data()), int(items.size()));
    });
}

}  // namespace ultrascale::ops
