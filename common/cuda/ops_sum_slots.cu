// The only kernel of the copy-engine collectives. Memory-bound: for each element it reads one value
// per rank and writes one.
#include "ops_common.cuh"
#include "sum_slots.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 512, blocks_per_multiprocessor = 2;

// Each thread adds up packs of n elements from all ranks, with up to four loads in flight, and
// handles the last, incomplete pack element by element.
template <int n, class T>
__global__ void __launch_bounds__(threads)
    sum_slots_kernel(T* out, const T* own, const T* slots, int64_t stride, int64_t count, int rank,
                     int ranks) {
    const auto summand = [=](int r) {
        return r == rank ? own : slots + (r < rank ? r : r - 1) * stride;
    };
    const int64_t step = int64_t(gridDim.x) * threads * n;
    int64_t i = (int64_t(blockIdx.x) * threads + threadIdx.x) * n;
    for (; i + n <= count; i += step) {
        float sum[n] = {};
#pragma unroll 4
        for (int r = 0; r < ranks; ++r) {
            const auto pack = load<n>(summand(r) + i);
#pragma unroll
            for (int j = 0; j < n; ++j)
                sum[j] = r == 0 ? to_float(pack.x[j]) : sum[j] + to_float(pack.x[j]);
        }
        Pack<T, n> result;
#pragma unroll
        for (int j = 0; j < n; ++j) result.x[j] = from_float<T>(sum[j]);
        store(out + i, result);
    }
    for (const int64_t end = min(i + n, count); i < end; ++i) {
        float sum = to_float(summand(0)[i]);
        for (int r = 1; r < ranks; ++r) sum += to_float(summand(r)[i]);
        out[i] = from_float<T>(sum);
    }
}

template <class T>
void launch(void* out, const void* own, const void* slots, int64_t stride, int64_t count, int rank,
            int ranks) {
    const int n = aligned16({out, own}) ? pack_size<T> : 1;
    const int64_t blocks = std::min<int64_t>(ceil_div(count, int64_t(threads) * n),
                                             blocks_per_multiprocessor * multiprocessors());
    LAUNCH((n == 1 ? sum_slots_kernel<1, T> : sum_slots_kernel<pack_size<T>, T>), unsigned(blocks),
           threads, 0)
    (static_cast<T*>(out), static_cast<const T*>(own), static_cast<const T*>(slots), stride, count,
     rank, ranks);
}

}  // namespace

void sum_slots(void* out, const void* own, const void* slots, int64_t stride, int64_t count,
               DType dtype, int rank, int ranks) {
    check(dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16,
          "sum_slots: another dtype than fp32, bf16 and fp16");
    const auto typed_launch = dtype == DType::fp32   ? launch<float>
                              : dtype == DType::bf16 ? launch<__nv_bfloat16>
                                                     : launch<__half>;
    typed_launch(out, own, slots, stride, count, rank, ranks);
}

}  // namespace ultrascale::ops
