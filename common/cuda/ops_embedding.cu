// Embedding: a gather of rows, and its gradient, a scatter-add that gives the same bits in every
// run.
//
// Forward reads and writes N rows (4 bytes per element in bf16; frequent rows come from L2).
//
// Backward sorts the tokens' indices by row, stably, and sums each row's segment of the sorted list
// (a stretch) in order, in fp32. Some rows occur once and some thousands of times, so the work is
// split by the list and not by row: each warp takes 32 entries of the list (a chunk). It adds the
// stretches that begin and end in its chunk to dweight. A stretch that spans several chunks leaves
// one partial sum per chunk, and a second kernel adds these in order. Backward reads dout once; it
// reads and writes each row of dweight that occurs once.
#include <bit>
#include <cub/device/device_radix_sort.cuh>

#include "ops_common.cuh"

namespace ultrascale::ops {

namespace {

constexpr int warps = 8;

// A warp copies a token's row; each lane has `packs` packs in flight (2048 bf16 per warp). The
// output is not read again soon; the weight's rows are.
template <int n, class T>
__global__ void __launch_bounds__(32 * warps)
    gather(T* out, const int32_t* tokens, const T* weight, int64_t first_row, int64_t N, int64_t V,
           int64_t h) {
    constexpr int packs = 8;
    const int64_t token = int64_t(blockIdx.x) * warps + threadIdx.y;
    if (token >= N) return;
    const int64_t row = tokens[token] - first_row;
    const bool held = row >= 0 && row < V;
    for (int64_t first = threadIdx.x * n; first < h; first += packs * 32 * n) {
        Pack<T, n> values[packs];
#pragma unroll
        for (int p = 0; p < packs; ++p) {
#pragma unroll
            for (int j = 0; j < n; ++j) values[p].x[j] = from_float<T>(0.0f);
            if (const int64_t i = first + p * 32 * n; held && i < h)
                values[p] = load<n>(weight + row * h + i);
        }
#pragma unroll
        for (int p = 0; p < packs; ++p)
            if (const int64_t i = first + p * 32 * n; i < h)
                store_once(out + token * h + i, values[p]);
    }
}

// Makes the list to be sorted: each token's row of dweight (V if it has none) and its index in the
// batch.
__global__ void make_keys(uint32_t* rows, int32_t* indices, const int32_t* tokens,
                          int64_t first_row, int N, int64_t V) {
    const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
    if (i >= N) return;
    const int64_t row = tokens[i] - first_row;
    rows[i] = uint32_t(row >= 0 && row < V ? row : V);
    indices[i] = i;
}

// Each warp adds up the rows of dout in its chunk. partial (2 * chunks, h) receives the chunk's sum
// of a stretch that began before it, and of a stretch that begins in it and continues beyond it.
// Blocks: (group of chunks, part of the columns).
template <int n, class W, class T>
__global__ void __launch_bounds__(32 * warps)
    add_chunks(W* dweight, float* partial, const uint32_t* rows, const int32_t* indices,
               const T* dout, int N, int64_t V, int64_t h) {
    const int chunk = blockIdx.x * warps + threadIdx.y, lane = threadIdx.x, i = chunk * 32 + lane;
    if (chunk * 32 >= N) return;
    const uint32_t none = uint32_t(V), row = i < N ? rows[i] : none;
    const int index = i < N ? indices[i] : 0;
    const uint32_t before = i > 0 && i < N ? rows[i - 1] : none,
                   after = i + 1 < N ? rows[i + 1] : none;
    const uint32_t held = __ballot_sync(~0u, row != none);
    const uint32_t begins = __ballot_sync(~0u, row != before),
                   ends = __ballot_sync(~0u, row != after);
    const bool goes_on =
        !(ends >> 31);  // the last entry's stretch (if any) goes on beyond this chunk

    const int64_t column = (int64_t(blockIdx.y) * 32 + lane) * n;
    const bool mine = column < h;
    constexpr int unroll = 4;
    float sum[n] = {};
    bool began_here = begins & 1;
    for (int first = 0; first < 32; first += unroll) {
        Pack<T, n> dys[unroll];
        Pack<W, n> olds[unroll];
        uint32_t to[unroll];
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int j = first + u;
            const int64_t from = __shfl_sync(~0u, index, j);
            to[u] = __shfl_sync(~0u, row, j);
            if (!mine || !(held >> j & 1)) continue;
            dys[u] = load<n>(dout + from * h + column);
            if (ends >> j & 1) olds[u] = load<n>(dweight + to[u] * h + column);
        }
#pragma unroll
        for (int u = 0; u < unroll; ++u) {
            const int j = first + u;
            if (!mine || !(held >> j & 1)) continue;
            if (begins >> j & 1) began_here = true;
#pragma unroll
            for (int c = 0; c < n; ++c)
                sum[c] = (begins >> j & 1 ? 0.0f : sum[c]) + to_float(dys[u].x[c]);
            if ((ends >> j & 1) && began_here) {
#pragma unroll
                for (int c = 0; c < n; ++c)
                    olds[u].x[c] = from_float<W>(to_float(olds[u].x[c]) + sum[c]);
                store(dweight + to[u] * h + column, olds[u]);
            } else if ((ends >> j & 1) || (j == 31 && goes_on)) {
                float* slot = partial + (2 * int64_t(chunk) + began_here) * h + column;
#pragma unroll
                for (int c = 0; c < n; ++c) slot[c] = sum[c];
            }
        }
    }
}

// Adds up a stretch that begins in this chunk and continues: its partial sum in this chunk, then
// those of the following chunks, in order.
template <class W>
__global__ void __launch_bounds__(256)
    add_stretches(W* dweight, const float* partial, const uint32_t* rows, int N, int64_t V,
                  int64_t h) {
    const int chunk = blockIdx.x, behind = (chunk + 1) * 32;
    if (behind >= N) return;
    const uint32_t row = rows[behind - 1];
    if (row == uint32_t(V) || rows[behind] != row || (chunk > 0 && rows[chunk * 32 - 1] == row))
        return;
    // Find the stretch's last chunk by the first entries of the following chunks, 32 at a time.
    int last = chunk;
    for (uint32_t same = ~0u; same == ~0u;) {
        const int64_t i = (int64_t(last) + 1 + threadIdx.x % 32) * 32;
        same = __ballot_sync(~0u, i < N && rows[i] == row);
        last += same == ~0u ? 32 : __ffs(int(~same)) - 1;
    }
    const int64_t column = int64_t(blockIdx.y) * 256 + threadIdx.x;
    if (column >= h) return;
    float sum = partial[(2 * int64_t(chunk) + 1) * h + column];
#pragma unroll 8
    for (int c = chunk + 1; c <= last; ++c) sum += partial[2 * int64_t(c) * h + column];
    W& to = dweight[row * h + column];
    to = from_float<W>(to_float(to) + sum);
}

}  // namespace

void embedding_forward(Tensor out, const Tensor& tokens, const Tensor& weight, int64_t first_row) {
    const int64_t N = tokens.numel(), V = weight.size(0), h = weight.cols();
    check(out.numel() == N * h, "embedding_forward: out is (N, h)");
    OpSpan span("embedding_forward", 0, bytes_of(out, out, tokens));
    with_type(out.dtype(), [&]<class T>(T) {
        const bool packs = packs_fit<T>(h, {out.data(), weight.data()});
        const unsigned grid = unsigned(ceil_div(N, warps));
        const dim3 block(32, warps);
        const Launch launch = packs ? LAUNCH((gather<pack_size<T>, T>), grid, block, 0)
                                    : LAUNCH((gather<1, T>), grid, block, 0);
        launch(data<T>(out), tokens.as<int32_t>(), data<T>(weight), first_row, N, V, h);
    });
}

void embedding_backward(Tensor dweight, const Tensor& tokens, const Tensor& dout,
                        int64_t first_row) {
    const int64_t N = tokens.numel(), V = dweight.size(0), h = dweight.cols();
    check(dout.numel() == N * h, "embedding_backward: dout is (N, h)");
    check(N < (int64_t(1) << 31) - 64 && V < int64_t(1) << 31,
          "embedding_backward: too many tokens or rows");
    OpSpan span("embedding_backward", double(N * h), bytes_of(dout, dout, dout, tokens));
    if (N == 0 || V == 0 || h == 0) return;

    // Rows and places, unsorted and sorted.
    const auto list = [&] { return Tensor::empty({N}, DType::int32, Memory::workspace); };
    const Tensor rows_tensor = list(), indices_tensor = list(), sorted_rows_tensor = list(),
                 sorted_indices_tensor = list();
    auto *rows = static_cast<uint32_t*>(rows_tensor.data()),
         *sorted_rows = static_cast<uint32_t*>(sorted_rows_tensor.data());
    int32_t *indices = indices_tensor.as<int32_t>(),
            *sorted_indices = sorted_indices_tensor.as<int32_t>();
    LAUNCH(make_keys, unsigned(ceil_div(N, 256)), 256, 0)
    (rows, indices, tokens.as<int32_t>(), first_row, int(N), V);
    const int bits = std::bit_width(uint64_t(V));
    size_t scratch_bytes = 0;
    const auto sort = [&](void* scratch) {
        cuda_check(cub::DeviceRadixSort::SortPairs(scratch, scratch_bytes, rows, sorted_rows,
                                                   indices, sorted_indices, int(N), 0, bits,
                                                   cuda_compute()));
    };
    sort(nullptr);  // tells how much scratch it needs
    const Tensor scratch =
        Tensor::empty({ceil_div(int64_t(scratch_bytes), 4) + 1}, DType::int32, Memory::workspace);
    sort(scratch.data());

    const int64_t chunks = ceil_div(N, 32);
    const Tensor partial_tensor = Tensor::empty({2 * chunks, h}, DType::fp32, Memory::workspace);
    float* partial = partial_tensor.as<float>();
    with_type(dweight.dtype(), [&]<class W>(W) {
        with_type(dout.dtype(), [&]<class T>(T) {
            constexpr int n = std::min(
                {pack_size<T>, pack_size<W>, 4});  // 8 would take 100 registers: too few warps
            const bool packs = packs_fit<T>(h, {dout.data()}) && packs_fit<W>(h, {dweight.data()});
            const dim3 grid(unsigned(ceil_div(chunks, warps)),
                            unsigned(ceil_div(h, 32 * (packs ? n : 1)))),
                block(32, warps);
            const Launch launch = packs ? LAUNCH((add_chunks<n, W, T>), grid, block, 0)
                                        : LAUNCH((add_chunks<1, W, T>), grid, block, 0);
            launch(data<W>(dweight), partial, sorted_rows, sorted_indices, data<T>(dout), int(N), V,
                   h);
        });
        LAUNCH(add_stretches<W>, dim3(unsigned(chunks), unsigned(ceil_div(h, 256))), 256, 0)
        (data<W>(dweight), partial, sorted_rows, int(N), V, h);
    });
}

}  // namespace ultrascale::ops
