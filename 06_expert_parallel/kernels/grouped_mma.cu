// Products in groups on the tensor cores that every GPU since Ampere has: tiles of 128 x 128, eight
// warps with 64 x 32 sums each, three stages of 64 k that cp.async fills (07_kernels,
// 3_product/9_product_mma.cu). The forms are those of grouped_wgmma.cu. Elements outside of a group
// or of a matrix are never read: cp.async writes zeros instead.
#include "grouped_tensor_cores.cuh"

namespace ultrascale::ops {

namespace {

constexpr int tile = 128, k_step = 64, stages = 3, threads = 256;
constexpr int warp_rows = 64, warp_columns = 32;
constexpr int a_tiles = warp_rows / 16, b_pairs = warp_columns / 16;

struct Stage {
    Element a[tile * k_step], b[tile * k_step];
};

// Copies rows row .. row + ROWS - 1, columns column .. column + COLS - 1 of a matrix with N columns
// to a tile; rows from row_end on and columns from N on become zeros.
template <int ROWS, int COLS>
__device__ void load_part(Element* to, const Element* matrix, int N, int64_t row, int64_t row_end,
                          int column) {
    constexpr int chunks = COLS / 8;
    static_assert(ROWS * chunks % threads == 0);
#pragma unroll
    for (int i = 0; i < ROWS * chunks / threads; ++i) {
        const int index = i * threads + int(threadIdx.x), r = index / chunks, c = index % chunks;
        const bool valid = row + r < row_end && column + c * 8 < N;
        copy_async(tile_chunk<COLS>(to, r, c),
                   valid ? matrix + (row + r) * N + column + c * 8 : matrix, valid);
    }
}

// Loads A = tile^T: its rows are the tile's columns row .. row + 15, its k are the tile's rows 16 k
// .. 16 k + 15.
template <int D>
__device__ void load_a_columns(uint32_t (&a)[4], Element* from, int row, int k) {
    const int lane = int(threadIdx.x) % 32;
    ldmatrix_transposed(
        a, tile_chunk<D>(from, 16 * k + lane / 16 * 8 + lane % 8, row / 8 + lane / 8 % 2));
}

template <GroupForm form, class D>
__global__ void __launch_bounds__(threads)
    product(D* out, const D* addend, const GroupProduct p, const Element* a, const Element* b) {
    DYNAMIC_SHARED(Stage, stage);
    GroupWalk walk{p.counts, p.G, tile};
    const int column0 = int(blockIdx.y) * tile;
    int64_t row0, row_end, k_begin = 0, k_end = p.K;
    if constexpr (form == GroupForm::weight) {
        walk.go_to(int(blockIdx.z));
        row0 = int64_t(blockIdx.x) * tile, row_end = p.M;
        k_begin = walk.begin, k_end = walk.end;
        const int64_t before = int64_t(walk.group) * p.M * p.N;
        out += before, addend = addend ? addend + before : nullptr;
    } else {
        if (!walk.find(blockIdx.x)) return;
        row0 = walk.row(blockIdx.x), row_end = walk.end;
        b += int64_t(walk.group) * p.N * p.K;
    }
    const int steps = int((k_end - k_begin + k_step - 1) / k_step);
    const auto begin_load = [&](int step) {
        Stage& to = stage[step % stages];
        const int64_t k = k_begin + int64_t(step) * k_step;
        if constexpr (form == GroupForm::weight)
            load_part<k_step, tile>(to.a, a, p.M, k, k_end, int(row0));
        else
            load_part<tile, k_step>(to.a, a, p.K, row0, row_end, int(k));
        if constexpr (form == GroupForm::forward)
            load_part<tile, k_step>(to.b, b, p.K, column0, p.N, int(k));
        else
            load_part<k_step, tile>(to.b, b, p.N, k, k_end, column0);
    };
    const int warp = int(threadIdx.x) / 32, warp_row = warp / 4 * warp_rows,
              warp_column = warp % 4 * warp_columns;
    float sum[a_tiles][2 * b_pairs][4] = {};
    for (int step = 0; step < stages - 1; ++step) {
        if (step < steps) begin_load(step);
        copy_async_commit();
    }
    for (int step = 0; step < steps; ++step) {
        copy_async_wait<stages - 2>();  // this step's tiles have arrived
        __syncthreads();                // and all warps have read those that are overwritten next
        if (step + stages - 1 < steps) begin_load(step + stages - 1);
        copy_async_commit();
        Stage& from = stage[step % stages];
#pragma unroll
        for (int k16 = 0; k16 < k_step / 16; ++k16) {
            uint32_t a_part[a_tiles][4], b_part[b_pairs][4];
#pragma unroll
            for (int i = 0; i < a_tiles; ++i) {
                if constexpr (form == GroupForm::weight)
                    load_a_columns<tile>(a_part[i], from.a, warp_row + 16 * i, k16);
                else
                    load_a<k_step>(a_part[i], from.a, warp_row + 16 * i, k16);
            }
#pragma unroll
            for (int j = 0; j < b_pairs; ++j) {
                if constexpr (form == GroupForm::forward)
                    load_b_rows<k_step>(b_part[j], from.b, warp_column + 16 * j, k16);
                else
                    load_b_columns<tile>(b_part[j], from.b, 16 * k16, warp_column / 16 + j);
            }
#pragma unroll
            for (int i = 0; i < a_tiles; ++i)
#pragma unroll
                for (int j = 0; j < b_pairs; ++j) mma_pair(sum[i], j, a_part[i], b_part[j]);
        }
    }
#pragma unroll
    for (int i = 0; i < a_tiles; ++i)
        store_sums(out, addend, p.N, row0 + warp_row + 16 * i, row_end, column0 + warp_column,
                   sum[i]);
}

template <GroupForm form, class D>
void start(const Tensor& out, const Tensor& a, const Tensor& b, const Tensor& addend,
           const GroupProduct& p, dim3 grid) {
    LAUNCH((product<form, D>), grid, threads, stages * sizeof(Stage))
    (data<D>(out), addend ? data<D>(addend) : nullptr, p, data<Element>(a), data<Element>(b));
}

}  // namespace

void grouped_mma(GroupForm form, const Tensor& out, const Tensor& a, const Tensor& b,
                 const Tensor& addend, const GroupProduct& p) {
    const unsigned across = unsigned(ceil_div(p.N, tile));
    check(across < 65536, "grouped_matmul: too many columns for a grid");
    if (form == GroupForm::weight) {
        const dim3 grid(unsigned(ceil_div(p.M, tile)), across, unsigned(p.G));
        with_type(out.dtype(),
                  [&]<class D>(D) { start<GroupForm::weight, D>(out, a, b, addend, p, grid); });
        return;
    }
    const dim3 grid(unsigned(most_row_tiles(a.rows(), p.G, tile)), across);
    (form == GroupForm::forward ? start<GroupForm::forward, Element>
                                : start<GroupForm::input, Element>)(out, a, b, {}, p, grid);
}

}  // namespace ultrascale::ops
