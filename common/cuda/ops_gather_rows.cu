// Copies rows in another order, 16 bytes at a time if rows and addresses allow it, else one
// element. Memory-bound: every byte is read and written once.
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256, at_once = 8;  // units that a thread has in flight

// Each block writes threads * at_once neighbouring units of out, wherever they come from. A row may
// be a token's, shorter than a warp, or as long as a rank's whole chunk. index[n] comes from L1.
template <class Unit>
__global__ void __launch_bounds__(threads)
    gather(Unit* out, const Unit* in, const int32_t* index, uint32_t row, int64_t count) {
    const int64_t first = int64_t(blockIdx.x) * (threads * at_once) + threadIdx.x;
    Unit held[at_once];
#pragma unroll
    for (int u = 0; u < at_once; ++u)
        if (const int64_t i = first + u * threads; i < count)
            held[u] = in[int64_t(index[uint32_t(i) / row]) * row + uint32_t(i) % row];
#pragma unroll
    for (int u = 0; u < at_once; ++u)
        if (const int64_t i = first + u * threads; i < count) out[i] = held[u];
}

template <class Unit>
void launch(const Tensor& out, const Tensor& in, const Tensor& index, int64_t row_bytes) {
    const int64_t row = row_bytes / int64_t(sizeof(Unit)), count = row * index.numel();
    check(count < int64_t(1) << 32, "gather_rows: the kernel divides 32-bit numbers");
    LAUNCH(gather<Unit>, unsigned(ceil_div(count, threads * at_once)), threads, 0)
    (static_cast<Unit*>(out.data()), static_cast<const Unit*>(in.data()), data<int32_t>(index),
     uint32_t(row), count);
}

}  // namespace

void gather_rows(Tensor out, const Tensor& in, const Tensor& index) {
    const int64_t N = index.numel(), row = N == 0 ? 0 : out.numel() / N;  // elements
    check(out.dtype() == in.dtype(), "gather_rows: out and in are of one dtype");
    check(out.numel() == N * row, "gather_rows: out has a row for each index");
    check(row == 0 || in.numel() % row == 0, "gather_rows: in has rows of the same size as out");
    OpSpan span("gather_rows", 0, bytes_of(out, out, index));
    const int64_t element = dtype_bytes(in.dtype()), bytes = row * element;
    const bool wide = packs_fit<char>(bytes, {out.data(), in.data()});
    (wide           ? launch<uint4>
     : element == 2 ? launch<uint16_t>
     : element == 4 ? launch<uint32_t>
                    : launch<uint64_t>)(out, in, index, bytes);
}

}  // namespace ultrascale::ops
