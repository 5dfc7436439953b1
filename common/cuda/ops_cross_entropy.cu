// Softmax cross-entropy: loss = log(sum exp(logits - max)) + max - logits[target], and its gradient
// in place.
//
// Each block handles a row. First pass: maximum and sum together, each thread over its own packs
// (online softmax: Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867). Second pass: the
// gradient overwrites the logits. The kernel reads the logits once from memory and writes them once
// (4 bytes per element in bf16): the row is loaded into shared memory, with all loads in flight at
// once, and stays there for the second pass; a thread reads only what it loaded itself. Packs that
// do not fit stay in registers, and those that do not fit there either are read again from L2.
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

// Packs that a thread processes at once; batches of the row that are waited for one by one.
constexpr int unroll = 4, batches_ahead = 8;

// The maximum of some logits, and the sum of exp(logit - maximum), computed as 2^(logit log2_e -
// shift) with one multiply-add and one exponential. The shift is rounded, but to the same number
// wherever this maximum is used, so the error cancels.
struct Softmax {
    float highest = -INFINITY, sum = 0;

    // If all logits so far are -inf, the shift is 0: -inf - -inf would be NaN.
    __device__ static float shift_of(float highest) {
        return highest == -INFINITY ? 0.0f : __fmul_rn(highest, log2_e);
    }
    __device__ float shift() const { return shift_of(highest); }
    __device__ void raise(float larger) {  // the maximum
        if (sum > 0) sum *= exp2_fast(shift() - shift_of(larger));
        highest = larger;
    }
};

template <int threads>
__device__ Softmax block_softmax(Softmax mine) {
    __shared__ float highest[threads / 32], sum[threads / 32];  // of the warps
    const auto together = [](Softmax s) {
        s.raise(warp_max(s.highest));
        s.sum = warp_sum(s.sum);
        return s;
    };
    mine = together(mine);
    const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
    if (lane == 0) highest[warp] = mine.highest, sum[warp] = mine.sum;
    __syncthreads();
    return together(lane < threads / 32 ? Softmax{highest[lane], sum[lane]} : Softmax{});
}

// A row has `packs` packs: the first `kept` of them stay in shared memory, the next in_registers of
// each thread in its registers.
template <int threads, int in_registers, int n, class T>
__global__ void __launch_bounds__(threads, 1024 / threads)
    cross_entropy_rows(float* losses, T* logits, const int32_t* targets, float dscale, int packs,
                       int kept) {
    DYNAMIC_SHARED(float4, shared);
    T* const row_shared = reinterpret_cast<T*>(shared);
    const int64_t row = blockIdx.x, V = int64_t(packs) * n;
    const int target = targets[row];
    logits += row * V;

    constexpr int batch = unroll * threads;
    const auto begin_batch = [&](int b) {
        const int end = b + 1 < batches_ahead ? min((b + 1) * batch, kept)
                                              : kept;  // the last batch takes the rest
        for (int p = b * batch + threadIdx.x; p < end; p += threads)
            load_async<n>(row_shared + p * n, logits + int64_t(p) * n);
        __pipeline_commit();
    };
    begin_batch(0);  // before any thread waits for the target

    if (target == ignored_target) {
        if (threadIdx.x == 0) losses[row] = 0;
        // For the first batch: no thread needs it, but it must not arrive after the block's end.
        __pipeline_wait_prior(0);
        if (dscale == 0) return;
        Pack<T, n> zeros;
#pragma unroll
        for (int j = 0; j < n; ++j) zeros.x[j] = from_float<T>(0.0f);
        for (int p = threadIdx.x; p < packs; p += threads)
            store_once(logits + int64_t(p) * n, zeros);
        return;
    }

    for (int b = 1; b < batches_ahead; ++b) begin_batch(b);
    const bool known = target >= 0 && target < V;
    const float at_target =
        known ? to_float(logits[target]) : NAN;  // before any thread overwrites it
    Pack<T, n> held[in_registers > 0 ? in_registers : 1];
#pragma unroll
    for (int u = 0; u < in_registers; ++u)
        if (const int p = kept + threadIdx.x + u * threads; p < packs)
            held[u] = load<n>(logits + int64_t(p) * n);
    const int again =
        min(packs, kept + in_registers * threads);  // from here on the row is read again

    // Calls work(values, first, end) for each batch of this thread's packs: first, first + threads,
    // ..., below end.
    const auto read = [&](Pack<T, n>(&values)[unroll], const T* from, int first, int end) {
#pragma unroll
        for (int u = 0; u < unroll; ++u)
            if (const int p = first + u * threads; p < end)
                values[u] = load<n>(from + int64_t(p) * n);
    };
    const auto for_each_batch = [&](auto&& work) {
        Pack<T, n> values[unroll];
        for (int first = threadIdx.x, b = 0; first < kept; first += batch, ++b) {
            __pipeline_wait_prior(b < batches_ahead ? batches_ahead - 1 - b : 0);
            read(values, row_shared, first, kept);
            work(values, first, kept);
        }
        if constexpr (in_registers > 0) {
            Pack<T, n> copy[in_registers];
#pragma unroll
            for (int u = 0; u < in_registers; ++u) copy[u] = held[u];
            work(copy, kept + int(threadIdx.x), again);
        }
        for (int first = again + threadIdx.x; first < packs; first += batch) {
            read(values, logits, first, packs);
            work(values, first, packs);
        }
    };

    Softmax mine;
    for_each_batch([&]<int count>(const Pack<T, n>(&values)[count], int first, int end) {
        float larger = mine.highest;
#pragma unroll
        for (int u = 0; u < count; ++u)
            if (first + u * threads < end)
#pragma unroll
                for (int j = 0; j < n; ++j) larger = fmaxf(larger, to_float(values[u].x[j]));
        if (larger > mine.highest) mine.raise(larger);
        const float shift = mine.shift();
#pragma unroll
        for (int u = 0; u < count; ++u)
            if (first + u * threads < end)
#pragma unroll
                for (int j = 0; j < n; ++j)
                    mine.sum += exp2_fast(fmaf(to_float(values[u].x[j]), log2_e, -shift));
    });
    const Softmax all = block_softmax<threads>(mine);
    const float shift = all.shift(), target_exponent = fmaf(at_target, log2_e, -shift);
    if (threadIdx.x == 0) losses[row] = (log2f(all.sum) - target_exponent) / log2_e;
    if (dscale == 0) return;

    const float factor = dscale / all.sum;
    for_each_batch([&]<int count>(Pack<T, n>(&values)[count], int first, int end) {
#pragma unroll
        for (int u = 0; u < count; ++u) {
            const int p = first + u * threads;
            if (p >= end) continue;
#pragma unroll
            for (int j = 0; j < n; ++j)
                values[u].x[j] = from_float<T>(
                    exp2_fast(fmaf(to_float(values[u].x[j]), log2_e, -shift)) * factor);
            store_once(logits + int64_t(p) * n, values[u]);
        }
    });
    // The thread that wrote the target's pack corrects the one element, rounded once.
    const int pack = target / n, writer = (pack < kept    ? pack
                                           : pack < again ? pack - kept
                                                          : pack - again) %
                                          threads;
    if (known && threadIdx.x == unsigned(writer))
        logits[target] = from_float<T>((exp2_fast(target_exponent) / all.sum - 1.0f) * dscale);
}

}  // namespace

// A target outside the vocabulary gives a loss of NaN: the host cannot look at the targets without
// waiting for them.
void cross_entropy(Tensor losses, Tensor logits, const Tensor& targets, float dscale) {
    const int64_t N = targets.numel(), V = logits.cols();
    check(logits.numel() == N * V && losses.numel() == N,
          "cross_entropy: logits (N, V), losses and targets (N)");
    check(V < int64_t(1) << 30, "cross_entropy: the vocabulary is too large");
    OpSpan span("cross_entropy", 4.0 * double(N * V),
                bytes_of(logits, losses, targets) + (dscale != 0 ? bytes_of(logits) : 0));
    with_type(logits.dtype(), [&]<class T>(T) {
        const bool packs = packs_fit<T>(V, {logits.data()});
        const int n = packs ? pack_size<T> : 1;
        const int64_t pack_bytes = n * int64_t(sizeof(T)), row = V / n;
        const auto start = [&](auto kernel, int threads, int64_t kept) {
            LAUNCH(kernel, unsigned(N), threads, size_t(kept * pack_bytes))
            (losses.as<float>(), data<T>(logits), targets.as<int32_t>(), dscale, int(row),
             int(kept));
        };
        // Two blocks share a multiprocessor if their rows fit together. A longer row has one to
        // itself, including the registers: Hopper's 227 + 32 KiB are enough for 128,256 logits in
        // bf16.
        constexpr int full = pack_size<T>;
        const int64_t most = (shared_memory_per_block() - 2048) / pack_bytes;
        if (dscale == 0)  // no second pass to keep the row for
            packs ? start(cross_entropy_rows<256, 0, full, T>, 256, 0)
                  : start(cross_entropy_rows<256, 0, 1, T>, 256, 0);
        else if (row <= most / 2)
            packs ? start(cross_entropy_rows<512, 0, full, T>, 512, row)
                  : start(cross_entropy_rows<512, 0, 1, T>, 512, row);
        else
            packs ? start(cross_entropy_rows<1024, 2, full, T>, 1024, std::min(row, most))
                  : start(cross_entropy_rows<1024, 2, 1, T>, 1024, std::min(row, most));
    });
}

}  // namespace ultrascale::ops
