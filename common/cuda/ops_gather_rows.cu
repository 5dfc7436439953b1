// Rows in another order: a copy, of 16 bytes at a time where rows and addresses allow it, else of
// one element. Memory-bound: every byte is written once. Rows that are read several times, as a
// token's is by each of its experts, come from the L2 cache if the matrix has room there. If not,
// the first columns of all rows are copied before the next ones, a slice of the matrix that has.
#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256, at_once = 8;  // units that a thread has in flight
constexpr int64_t slice_bytes = 16 << 20;  // of the L2 cache, some 50 MB on a Hopper GPU
constexpr int64_t piece_bytes = 512;       // of a row in a slice, at least

// Each block writes threads * at_once units of a slice of out, `width` of them in a row, wherever
// they come from: a row may be a token's, shorter than a warp, or as long as a rank's whole chunk.
// index[n] comes from L1. count: units in a slice.
template <class Unit>
__global__ void __launch_bounds__(threads)
    gather(Unit* out, const Unit* in, const int32_t* index, uint32_t row, uint32_t width,
           int64_t count, uint32_t per_row) {
    const int64_t first = int64_t(blockIdx.x) * (threads * at_once) + threadIdx.x,
                  slice = int64_t(blockIdx.y) * width;
    const auto n = [&](int64_t i) { return uint32_t(i) / width; };
    const auto place = [&](int64_t i) { return slice + uint32_t(i) % width; };
    Unit held[at_once];
#pragma unroll
    for (int u = 0; u < at_once; ++u)
        if (const int64_t i = first + u * threads; i < count)
            held[u] = in[int64_t(uint32_t(index[n(i)]) / per_row) * row + place(i)];
#pragma unroll
    for (int u = 0; u < at_once; ++u)
        if (const int64_t i = first + u * threads; i < count)
            out[int64_t(n(i)) * row + place(i)] = held[u];
}

template <class Unit>
void launch(const Tensor& out, const Tensor& in, const Tensor& index, int64_t row_bytes,
            int64_t per_row) {
    const int64_t row = row_bytes / int64_t(sizeof(Unit));
    int64_t slices = 1;
    while (out.bytes() > in.bytes() && in.bytes() / slices > slice_bytes &&
           row % (2 * slices) == 0 && row_bytes / (2 * slices) >= piece_bytes)
        slices *= 2;
    const int64_t width = row / slices, count = width * index.numel();
    check(count < int64_t(1) << 32, "gather_rows: the kernel divides 32-bit numbers");
    const dim3 grid(unsigned(ceil_div(count, threads * at_once)), unsigned(slices));
    LAUNCH(gather<Unit>, grid, threads, 0)
    (static_cast<Unit*>(out.data()), static_cast<const Unit*>(in.data()), data<int32_t>(index),
     uint32_t(row), uint32_t(width), count, uint32_t(per_row));
}

}  // namespace

void gather_rows(Tensor out, const Tensor& in, const Tensor& index, int64_t per_row) {
    const int64_t N = index.numel(), row = N == 0 ? 0 : out.numel() / N;  // elements
    check(out.dtype() == in.dtype(), "gather_rows: out and in are of one dtype");
    check(out.numel() == N * row, "gather_rows: out has a row for each index");
    check(row == 0 || in.numel() % row == 0, "gather_rows: in has rows of the same size as out");
    check(per_row >= 1, "gather_rows: an index is divided by per_row, at least 1");
    OpSpan span("gather_rows", 0, bytes_of(out, out, index));
    const int64_t element = dtype_bytes(in.dtype()), bytes = row * element;
    const bool wide = packs_fit<char>(bytes, {out.data(), in.data()});
    (wide           ? launch<uint4>
     : element == 2 ? launch<uint16_t>
     : element == 4 ? launch<uint32_t>
                    : launch<uint64_t>)(out, in, index, bytes, per_row);
}

}  // namespace ultrascale::ops
