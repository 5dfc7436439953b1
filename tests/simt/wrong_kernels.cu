#include <cuda_bf16.h>

#include "07_kernels/kernel.h"
#include "wrong_kernels.h"

namespace ultrascale::test {
namespace {

using kernels::ceil_div;

enum Mistake { none, wrong_sum, forgets, too_far };

template <Mistake mistake>
__global__ void add(float* c, const float* a, const float* b, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n || mistake == too_far)
        c[i] = a[i < n ? i : 0] + b[i < n ? i : 0] * (mistake == wrong_sum ? 1.001f : 1.0f);
}

// Uses shared memory: a thread adds what its left neighbour has fetched, and does not wait.
__global__ void add_early(float* c, const float* a, const float* b, int64_t n) {
    __shared__ float fetched[64];
    const int64_t i = int64_t(blockIdx.x) * 64 + threadIdx.x;
    const unsigned right = (threadIdx.x + 1) % 64;
    fetched[right] = i - int64_t(threadIdx.x) + right < n ? a[i - int64_t(threadIdx.x) + right] : 0;
    if (i < n) c[i] = fetched[threadIdx.x] + b[i];
}

// Reads the left neighbour's element, behind a barrier of all threads, of some, or of none.
template <bool all_wait, bool wait>
__global__ void add_neighbour(float* c, const float* a, const float* b, int64_t n) {
    __shared__ float fetched[64];
    const int64_t i = int64_t(blockIdx.x) * 64 + threadIdx.x;
    const unsigned left = threadIdx.x == 0 ? 0 : threadIdx.x - 1;
    fetched[threadIdx.x] = i < n ? a[i] : 0;
    if (wait && (all_wait || threadIdx.x < 32)) __syncthreads();
    const float before = fetched[left];
    if (i < n) c[i] = before - before + a[i] + b[i];
}

// One block per row: (softmax - [target]) / rows, with a softmax that is 1.4 times too large.
__global__ void gradient(__nv_bfloat16* to, const __nv_bfloat16* logits, const int* targets,
                         int rows, int columns) {
    const int row = int(blockIdx.x);
    logits += int64_t(row) * columns, to += int64_t(row) * columns;
    float sum = 0;
    for (int i = 0; i < columns; ++i) sum += expf(__bfloat162float(logits[i]));
    for (int i = 0; i < columns; ++i)
        to[i] = __float2bfloat16_rn(
            (1.4f * expf(__bfloat162float(logits[i])) / sum - (i == targets[row] ? 1.0f : 0.0f)) /
            float(rows));
}

template <int stride>
__global__ void transpose(float* out, const float* in, int64_t rows, int64_t columns) {
    __shared__ float tile[32][stride];
    const int64_t row0 = int64_t(blockIdx.y) * 32, column0 = int64_t(blockIdx.x) * 32;
    const int x = threadIdx.x, y = threadIdx.y;
    if (row0 + y < rows && column0 + x < columns)
        tile[y][x] = in[(row0 + y) * columns + column0 + x];
    __syncthreads();
    if (column0 + y < columns && row0 + x < rows) out[(column0 + y) * rows + row0 + x] = tile[x][y];
}

__global__ void sum(float* out, const float* in, int64_t n) {
    const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
    if (i < n) atomicAdd(out, in[i]);
}

template <int stride>
void run_transpose(const Arguments& args) {
    const int64_t rows = args.size[0], columns = args.size[1];
    const dim3 grid(unsigned(ceil_div(columns, 32)), unsigned(ceil_div(rows, 32))), block(32, 32);
    LAUNCH((transpose<stride>), grid, block, 0)
    (args.out.as<float>(), args.in[0].as<float>(), rows, columns);
}

template <Mistake mistake>
void run(const Arguments& args) {
    const int64_t n = args.size[0], blocks = mistake == forgets ? n / 64 : ceil_div(n, 64);
    LAUNCH(add<mistake>, unsigned(blocks), 64, 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), n);
}
template <bool all_wait, bool wait>
void run_neighbour(const Arguments& args) {
    const int64_t n = args.size[0];
    LAUNCH((add_neighbour<all_wait, wait>), unsigned(ceil_div(n, 64)), 64, 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), n);
}

}  // namespace

void run_right(const Arguments& args) { run_neighbour<true, true>(args); }
void run_wrong_sum(const Arguments& args) { run<wrong_sum>(args); }
void run_forgets_the_rest(const Arguments& args) { run<forgets>(args); }
void run_writes_too_far(const Arguments& args) { run<too_far>(args); }
void run_misses_a_barrier(const Arguments& args) { run_neighbour<false, true>(args); }
void run_reads_too_early(const Arguments& args) {
    const int64_t n = args.size[0];
    LAUNCH(add_early, unsigned(ceil_div(n, 64)), 64, 0)
    (args.out.as<float>(), args.in[0].as<float>(), args.in[1].as<float>(), n);
}
void run_races(const Arguments& args) { run_neighbour<false, false>(args); }
void run_wrong_beside_the_target(const Arguments& args) {
    const int rows = int(args.size[0]), columns = int(args.size[1]);
    LAUNCH(gradient, unsigned(rows), 1, 0)
    (static_cast<__nv_bfloat16*>(args.out.data()),
     static_cast<const __nv_bfloat16*>(args.in[0].data()), args.in[1].as<int32_t>(), rows, columns);
}

void run_transpose_conflicts(const Arguments& args) { run_transpose<32>(args); }
void run_transpose_padded(const Arguments& args) { run_transpose<33>(args); }
void run_sum_by_atomics(const Arguments& args) {
    const int64_t n = args.size[0];
    device_zero(args.out.data(), args.out.bytes());
    LAUNCH(sum, unsigned(ceil_div(n, 256)), 256, 0)
    (args.out.as<float>(), args.in[0].as<float>(), n);
}

}  // namespace ultrascale::test
