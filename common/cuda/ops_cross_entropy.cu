// Softmax cross-entropy: loss = log(sum exp(logits - max)) + max - logits[target], and its gradient in place.
//
// A block takes one row. First pass: maximum and sum together, each thread over its own packs (online softmax: Milakov &
// Gimelshein 2018, https://arxiv.org/abs/1805.02867). Second pass: the gradient over the logits. Reads the logits once from
// memory and writes them once (4 bytes per element in bf16): what fits of the row waits in shared memory for the second pass
// (a thread reads back its own packs), the rest is read again while it is still in L2.
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 512, unroll = 4;
constexpr int64_t shared_bytes = 110 * 1024;  // of a row; two blocks share a multiprocessor's 228 KiB

// Reads and writes of what nobody needs again soon: the second pass does not push other blocks' rows out of L2.
template <int n, class T>
__device__ Pack<T, n> load_last(const T* from) {
    if constexpr (n * sizeof(T) == 16) {
        const uint4 bits = __ldcs(reinterpret_cast<const uint4*>(from));
        return *reinterpret_cast<const Pack<T, n>*>(&bits);
    } else {
        return load<n>(from);
    }
}
template <int n, class T>
__device__ void store_last(T* to, const Pack<T, n>& pack) {
    if constexpr (n * sizeof(T) == 16)
        __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
    else
        store(to, pack);
}

__device__ float block_max(float x) {
    __shared__ float partial[threads / 32];
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    for (int w = 0; w < threads / 32; ++w) x = fmaxf(x, partial[w]);
    return x;
}

// The row's packs [0, kept) stay in shared memory.
template <int n, class T>
__global__ void __launch_bounds__(threads, 2)
    cross_entropy_rows(float* losses, T* logits, const int32_t* targets, float dscale, int64_t V, int kept) {
    extern __shared__ float4 shared[];
    T* row_shared = reinterpret_cast<T*>(shared);
    const int64_t row = blockIdx.x;
    const int target = targets[row], packs = int(V / n);
    logits += row * V;

    if (target == ignored_target) {
        if (threadIdx.x == 0) losses[row] = 0;
        if (dscale == 0) return;
        Pack<T, n> zeros;
#pragma unroll
        for (int j = 0; j < n; ++j) zeros.x[j] = from_float<T>(0.0f);
        for (int p = threadIdx.x; p < packs; p += threads) store_last(logits + int64_t(p) * n, zeros);
        return;
    }
    const bool known = target >= 0 && target < V;
    const float at_target = known ? to_float(logits[target]) : NAN;  // before any thread overwrites it

    float highest = -INFINITY, sum = 0;  // of exp(logit - highest)
    for (int first = threadIdx.x; first < packs; first += unroll * threads) {
        Pack<T, n> values[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int p = first + u * threads;
            if (p < packs) values[u] = load<n>(logits + int64_t(p) * n);
        }
        float larger = highest;
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int p = first + u * threads;
            if (p >= packs) continue;
            if (p < kept) store(row_shared + p * n, values[u]);
#pragma unroll
            for (int j = 0; j < n; ++j) larger = fmaxf(larger, to_float(values[u].x[j]));
        }
        const float shift = larger == -INFINITY ? 0.0f : larger;  // only -inf so far: -inf - 0, not -inf - -inf
        sum *= __expf(highest - shift);
        highest = larger;
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            if (first + u * threads < packs)
#pragma unroll
                for (int j = 0; j < n; ++j) sum += __expf(to_float(values[u].x[j]) - shift);
    }
    const float row_highest = block_max(highest);
    const float row_sum = block_sum<threads>(highest == -INFINITY ? 0.0f : sum * __expf(highest - row_highest));
    if (threadIdx.x == 0) losses[row] = logf(row_sum) - (at_target - row_highest);
    if (dscale == 0) return;

    const float factor = dscale / row_sum;
    for (int first = threadIdx.x; first < packs; first += unroll * threads) {
        Pack<T, n> values[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int p = first + u * threads;
            if (p < packs) values[u] = p < kept ? load<n>(row_shared + p * n) : load_last<n>(logits + int64_t(p) * n);
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int p = first + u * threads;
            if (p >= packs) continue;
#pragma unroll
            for (int j = 0; j < n; ++j) values[u].x[j] = from_float<T>(__expf(to_float(values[u].x[j]) - row_highest) * factor);
            store_last(logits + int64_t(p) * n, values[u]);
        }
    }
    // The thread that wrote the target's pack corrects the one element, rounded once.
    if (known && threadIdx.x == unsigned(target) / n % threads)
        logits[target] = from_float<T>((__expf(at_target - row_highest) / row_sum - 1.0f) * dscale);
}

}  // namespace

// A target outside the vocabulary gives a loss of NaN: the host cannot look at the targets without waiting for them.
void cross_entropy(Tensor losses, Tensor logits, const Tensor& targets, float dscale) {
    const int64_t N = targets.numel(), V = logits.cols();
    check(logits.numel() == N * V && losses.numel() == N, "cross_entropy: logits (N, V), losses and targets (N)");
    check(V < int64_t(1) << 30, "cross_entropy: the vocabulary is too large");
    OpSpan span("cross_entropy", 4.0 * double(N * V), bytes_of(logits, losses, targets) + (dscale != 0 ? bytes_of(logits) : 0));
    with_type(logits.dtype(), [&]<class T>(T) {
        const bool packs = packs_fit<T>(V, {logits.data()});
        const int n = packs ? pack_size<T> : 1;
        const int64_t pack_bytes = n * int64_t(sizeof(T)), kept = dscale == 0 ? 0 : std::min(V / n, shared_bytes / pack_bytes);
        const Launch launch = packs ? LAUNCH((cross_entropy_rows<pack_size<T>, T>), unsigned(N), threads, size_t(kept * pack_bytes))
                                    : LAUNCH((cross_entropy_rows<1, T>), unsigned(N), threads, size_t(kept * pack_bytes));
        launch(losses.as<float>(), data<T>(logits), targets.as<int32_t>(), dscale, V, int(kept));
    });
}

}  // namespace ultrascale::ops
