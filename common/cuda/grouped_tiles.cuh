// Which tiles of the products in groups a cluster of two blocks computes. Private to common/cuda.
//
// The tiles of a group are numbered down its columns, and a cluster takes two neighbouring ones. As
// a rule they lie below each other, and need the same columns of B; where a column or a group ends
// between them, each reads its own.
#pragma once

#include "grouped_tensor_cores.cuh"
#include "product_tiles.cuh"

namespace ultrascale::ops {

constexpr int tile_rows = 128, tile_columns = 256;
constexpr int tiles_below = 16;
constexpr int cluster = 2;  // blocks

// A tile of the result.
struct Work {
    int group;
    int row, row_end;  // its first row, and where the rows that may be stored end
    int column;
    int k, k_end;  // weight: the group's rows
    bool shares;   // the other block needs the same part of B
};

// The walk through a cluster's pairs of tiles, as its block `rank` sees it. Both tiles of a pair
// have the same k.
template <GroupForm form>
class Tiles {
public:
    __device__ Tiles(const GroupProduct& p, int rank)
        : p_(p),
          walk_{p.counts, p.G, tile_rows},
          down_((p.M + tile_rows - 1) / tile_rows),
          across_((p.N + tile_columns - 1) / tile_columns),
          rank_(rank),
          pair_(int(blockIdx.x) / cluster) {}
    // Returns false after the last pair. A pair's second tile may not exist: then its block helps
    // the first one, and has no rows to store.
    __device__ bool next(Work& work) {
        Work first, second;
        const int index = cluster * pair_;
        if constexpr (form == GroupForm::weight) {
            const int tiles = down_ * across_, pairs = (tiles + 1) / cluster;
            if (pair_ / pairs >= p_.G) return false;
            walk_.go_to(pair_ / pairs);
            const int in_group = cluster * (pair_ % pairs);
            first = of_weight(in_group);
            second = in_group + 1 < tiles ? of_weight(in_group + 1) : without_rows(first);
        } else {
            if (!walk_.find(index / across_)) return false;
            first = of_rows(index);
            second = walk_.find((index + 1) / across_) ? of_rows(index + 1) : without_rows(first);
        }
        work = rank_ == 0 ? first : second;
        work.shares = first.group == second.group && first.column == second.column;
        pair_ += int(gridDim.x) / cluster;
        return true;
    }

private:
    __device__ Work of_weight(int in_group) const {
        const Tile tile = tile_at(in_group, down_, across_, tiles_below);
        return {walk_.group,      tile.row * tile_rows, p_.M, tile.column * tile_columns,
                int(walk_.begin), int(walk_.end),       false};
    }
    __device__ Work of_rows(int index) const {
        const Tile tile = tile_at(index - int(walk_.first_tile) * across_,
                                  int(walk_.next_tile - walk_.first_tile), across_, tiles_below);
        return {walk_.group,
                int(walk_.begin) + tile.row * tile_rows,
                int(walk_.end),
                tile.column * tile_columns,
                0,
                p_.K,
                false};
    }
    __device__ static Work without_rows(Work work) {
        work.row_end = 0;
        return work;
    }

    const GroupProduct& p_;
    GroupWalk walk_;
    int down_, across_, rank_, pair_;
};

}  // namespace ultrascale::ops
