// Shared by the kernels for products in groups: finds the group to which a tile of rows belongs.
//
// Only the device knows the counts, and the host does not wait for them. A grid has as many tiles
// of rows as there can be, however the rows are divided: R / tile_rows + G. Blocks walk through
// them in order; those after the last tile find no work.
#pragma once

#include "cuda/ops_common.cuh"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

// The largest number of tiles of `tile_rows` rows for R rows in G groups.
inline int64_t most_row_tiles(int64_t R, int64_t G, int tile_rows) {
    return ceil_div(R, tile_rows) + G;
}

// A walk through the tiles of rows of all groups, in order.
struct GroupWalk {
    const int32_t* counts;
    int G, tile_rows;
    int group = -1;                         // the group of the tile that find() found last
    int64_t begin = 0, end = 0;             // rows of the group
    int64_t first_tile = 0, next_tile = 0;  // the group's tiles: first .. next - 1

    // Goes to the group that has this tile; tiles must not decrease from call to call. Returns
    // false if there are not that many.
    __device__ bool find(int64_t tile) {
        while (tile >= next_tile) {
            if (++group >= G) return false;
            begin = end;
            end += counts[group];
            first_tile = next_tile;
            next_tile += (end - begin + tile_rows - 1) / tile_rows;
        }
        return true;
    }
    // Goes to a group that is not before the present one.
    __device__ void go_to(int to) {
        while (group < to) begin = end, end += counts[++group];
    }
    __device__ int64_t row(int64_t tile) const { return begin + (tile - first_tile) * tile_rows; }
};

// The product on tensor cores, for bf16 operands whose rows are multiples of 16 bytes: by wgmma and
// TMA if the GPU has them, else by mma. Returns false if this GPU or these operands do not qualify.
bool grouped_matmul_on_tensor_cores(const Tensor& y, const Tensor& x, const Tensor& w,
                                    const Tensor& counts);
bool grouped_matmul_backward_input_on_tensor_cores(const Tensor& dx, const Tensor& dy,
                                                   const Tensor& w, const Tensor& counts);
bool grouped_matmul_backward_weight_on_tensor_cores(const Tensor& dw, const Tensor& dy,
                                                    const Tensor& x, const Tensor& counts,
                                                    const Tensor& addend);

}  // namespace ultrascale::ops
