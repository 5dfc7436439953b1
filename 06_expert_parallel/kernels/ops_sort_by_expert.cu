// A stable sort of choices by expert, without atomics: a warp takes a contiguous piece of the
// choices, 32 at a time in order, and ranks each among the lanes that chose the same expert.
//
//     count   how many choices of each expert a block has                 (blocks, E)
//     add up  over the blocks and the experts before:   where a block's rows begin
//     assign  the same walk again: row = begin + rank within the block
//
// Each choice is read twice and written twice: 16 bytes, compared with a row's thousands.
#include "cuda/ops_common.cuh"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

namespace {

constexpr int warps = 8, threads = 32 * warps;

// The lanes of this warp whose expert equals this lane's. (A vote for each bit: before Volta, and
// on the CPU, there is no match instruction.)
__device__ uint32_t lanes_with_same(int expert, int bits) {
    uint32_t same = 0xffffffffu;
    for (int b = 0; b < bits; ++b) {
        const uint32_t ones = __ballot_sync(0xffffffffu, expert >> b & 1);
        same &= expert >> b & 1 ? ones : ~ones;
    }
    return same;
}

struct Sort {
    const int32_t* experts;
    int64_t R;
    int E, bits, rounds;  // a warp takes 32 * rounds choices
    __device__ int64_t first() const {
        return (int64_t(blockIdx.x) * warps + int(threadIdx.x) / 32) * 32 * rounds;
    }
    // Expert E stands for "none": a dropped choice, or one after the last.
    __device__ int expert(int64_t i) const {
        const int e = i < R ? experts[i] : -1;
        return e < 0 ? E : e;
    }
};

// Counts this warp's choices in count (E + 1).
__device__ void count_own(int* count, const Sort& s) {
    const int lane = int(threadIdx.x) % 32;
    for (int e = lane; e <= s.E; e += 32) count[e] = 0;
    __syncwarp();
    for (int round = 0; round < s.rounds; ++round) {
        const int e = s.expert(s.first() + round * 32 + lane);
        const uint32_t same = lanes_with_same(e, s.bits);
        if (lane == __ffs(int(same)) - 1) count[e] += __popc(same);
        __syncwarp();
    }
}

__global__ void __launch_bounds__(threads) count(int32_t* in_block, const Sort s) {
    DYNAMIC_SHARED(int, counts);  // (warps, E + 1)
    count_own(counts + int(threadIdx.x) / 32 * (s.E + 1), s);
    __syncthreads();
    for (int e = threadIdx.x; e < s.E; e += threads) {
        int sum = 0;
        for (int w = 0; w < warps; ++w) sum += counts[w * (s.E + 1) + e];
        in_block[int64_t(blockIdx.x) * s.E + e] = sum;
    }
}

// One block of 1024 threads, one for each expert. begin (blocks, E) holds the counts, and receives
// where a block's rows of an expert begin. total (1): all rows.
__global__ void __launch_bounds__(1024)
    add_up(int32_t* counts, int32_t* begin, int32_t* total, int blocks, int E) {
    __shared__ int sums[2][1024];
    const int e = threadIdx.x;
    int sum = 0;
    if (e < E)
#pragma unroll 8
        for (int b = 0; b < blocks; ++b) sum += begin[int64_t(b) * E + e];
    // The sum over experts up to this one: each step adds the sum that lies `step` experts before.
    int here = 0;
    sums[0][e] = e < E ? sum : 0;
    __syncthreads();
    for (int step = 1; step < 1024; step *= 2, here ^= 1) {
        sums[here ^ 1][e] = sums[here][e] + (e >= step ? sums[here][e - step] : 0);
        __syncthreads();
    }
    if (e >= E) return;
    counts[e] = sum;
    if (e == E - 1) *total = sums[here][e];
    int next = sums[here][e] - sum;
#pragma unroll 8
    for (int b = 0; b < blocks; ++b) {
        const int in_block = begin[int64_t(b) * E + e];
        begin[int64_t(b) * E + e] = next;
        next += in_block;
    }
}

__global__ void __launch_bounds__(threads)
    assign_rows(int32_t* order, int32_t* row_map, const int32_t* begin, const int32_t* total,
                const Sort s) {
    DYNAMIC_SHARED(int, counts);  // (warps, E + 1)
    const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
    int* const next = counts + warp * (s.E + 1);
    count_own(next, s);
    __syncthreads();
    for (int e = threadIdx.x; e < s.E; e += threads) {  // where each warp's rows begin
        int sum = begin[int64_t(blockIdx.x) * s.E + e];
        for (int w = 0; w < warps; ++w) {
            const int in_warp = counts[w * (s.E + 1) + e];
            counts[w * (s.E + 1) + e] = sum;
            sum += in_warp;
        }
    }
    __syncthreads();
    const int rows = *total;
    for (int round = 0; round < s.rounds; ++round) {
        const int64_t i = s.first() + round * 32 + lane;
        const int e = s.expert(i);
        const uint32_t same = lanes_with_same(e, s.bits);
        const int to = next[e] + __popc(same & ((1u << lane) - 1));
        __syncwarp();
        if (lane == __ffs(int(same)) - 1) next[e] += __popc(same);
        __syncwarp();
        if (i >= s.R) continue;
        row_map[i] = e < s.E ? to : -1;
        if (e < s.E) order[to] = int32_t(i);
        if (i >= rows) order[i] = 0;  // no row: a gather may read row 0
    }
}

}  // namespace

void sort_by_expert(Tensor counts, Tensor order, Tensor row_map, const Tensor& experts) {
    check_sort(counts, order, row_map, experts);
    OpSpan span("sort_by_expert", 0, bytes_of(counts, order, row_map, experts, experts));
    Sort s = {.experts = experts.as<int32_t>(),
              .R = experts.numel(),
              .E = int(counts.numel()),
              .bits = 0,
              .rounds = 0};
    if (s.R == 0) return device_zero(counts.data(), counts.bytes());
    check(s.R < int64_t(1) << 31, "sort_by_expert: rows are 32-bit numbers");
    while (1 << s.bits <= s.E) ++s.bits;  // E itself is a number, too
    // At most 128 blocks: one thread adds up a whole column of them.
    s.rounds = int(std::max<int64_t>(4, ceil_div(s.R, 128 * threads)));
    const int64_t blocks = ceil_div(s.R, int64_t(threads) * s.rounds);
    const size_t shared = sizeof(int) * size_t(warps * (s.E + 1));
    const Tensor begin = Tensor::empty({blocks, s.E}, DType::int32, Memory::workspace),
                 total = Tensor::empty({1}, DType::int32, Memory::workspace);
    LAUNCH(count, unsigned(blocks), threads, shared)(begin.as<int32_t>(), s);
    LAUNCH(add_up, 1, 1024, 0)
    (counts.as<int32_t>(), begin.as<int32_t>(), total.as<int32_t>(), int(blocks), s.E);
    LAUNCH(assign_rows, unsigned(blocks), threads, shared)
    (order.as<int32_t>(), row_map.as<int32_t>(), begin.as<int32_t>(), total.as<int32_t>(), s);
}

}  // namespace ultrascale::ops
