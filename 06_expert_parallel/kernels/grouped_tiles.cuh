// Which tiles of the products in groups a cluster of two blocks computes.
//
// The tiles of a group are numbered down its columns, and a cluster takes two neighbouring ones.
// Usually one lies below the other, and both need the same columns of B; if a column or a group
// ends between them, each reads its own.
//
// Tiles at the end of a group, or of its columns, take less time than others. So a cluster takes
// its next pair when it is about to finish one (a "dynamic tile scheduler"). If the pairs were
// assigned in advance, some clusters would still compute when others have nothing left.
#pragma once

#include "cuda/clusters.cuh"
#include "cuda/product_tiles.cuh"
#include "grouped_tensor_cores.cuh"

namespace ultrascale::ops {

constexpr int tile_rows = 128, tile_columns = 256;
constexpr int tiles_below = 16;
constexpr int cluster = 2;  // blocks

struct alignas(16) Work {
    int group;         // -1: there is no more work
    int row, row_end;  // its first row, and where the rows that may be stored end
    int column;
    int k, k_end;  // weight: the group's rows
    int shares;    // the other block needs the same part of B
};

// Where a block finds its next tile. One thread of the cluster distributes tiles to both blocks,
// and to `readers` readers in each: threads that ask TMA, and warps that multiply.
struct NextWork {
    Work work;
    Barrier dealt, wanted;  // rank 0's `wanted` is that of both blocks

    __device__ void init(int readers) {
        barrier_init(&dealt, 1);
        barrier_init(&wanted, readers * cluster);
    }
    // Each reader calls it as soon as it may have another tile; it has read the last one.
    __device__ void want() { barrier_arrive_at(&wanted, 0); }
    // Reads a tile with one thread. Returns false after the last tile.
    __device__ bool read(Work& to, uint32_t& parity) {
        barrier_wait(&dealt, parity);
        parity ^= 1;
        to = work;
        return to.group >= 0;
    }
    // Reads a tile with a whole warp, and asks for the next one at once.
    __device__ bool read_by_warp(Work& to, uint32_t& parity) {
        read(to, parity);
        for (int* field : {&to.group, &to.row, &to.row_end, &to.column, &to.k, &to.k_end})
            *field = same_in_warp(*field);
        if (threadIdx.x % 32 == 0) want();
        return to.group >= 0;
    }
};

// Finds pairs of tiles by their number. Both tiles of a pair have the same k.
template <GroupForm form>
class Tiles {
public:
    __device__ explicit Tiles(const GroupProduct& p)
        : p_(p),
          walk_{p.counts, p.G, tile_rows},
          down_((p.M + tile_rows - 1) / tile_rows),
          across_((p.N + tile_columns - 1) / tile_columns) {}
    // Numbers increase from call to call. Returns false if there are not that many. A pair's second
    // tile may not exist: then its block helps the first one, and has no rows to store.
    __device__ bool find(int pair, Work (&both)[cluster]) {
        auto& [first, second] = both;
        first.group = second.group = -1;
        const int index = cluster * pair;
        if constexpr (form == GroupForm::weight) {
            const int tiles = down_ * across_, pairs = (tiles + 1) / cluster;
            if (pair / pairs >= p_.G) return false;
            walk_.go_to(pair / pairs);
            const int in_group = cluster * (pair % pairs);
            first = weight_work(in_group);
            second = in_group + 1 < tiles ? weight_work(in_group + 1) : without_rows(first);
        } else {
            if (!walk_.find(index / across_)) return false;
            first = rows_work(index);
            second = walk_.find((index + 1) / across_) ? rows_work(index + 1) : without_rows(first);
        }
        first.shares = second.shares = first.group == second.group && first.column == second.column;
        return true;
    }

private:
    __device__ Work weight_work(int in_group) const {
        const Tile tile = tile_at(in_group, down_, across_, tiles_below);
        return {walk_.group,      tile.row * tile_rows, p_.M, tile.column * tile_columns,
                int(walk_.begin), int(walk_.end),       0};
    }
    __device__ Work rows_work(int index) const {
        const Tile tile = tile_at(index - int(walk_.first_tile) * across_,
                                  int(walk_.next_tile - walk_.first_tile), across_, tiles_below);
        return {walk_.group,
                int(walk_.begin) + tile.row * tile_rows,
                int(walk_.end),
                tile.column * tile_columns,
                0,
                p_.K,
                0};
    }
    __device__ static Work without_rows(Work work) {
        work.row_end = 0;
        return work;
    }

    const GroupProduct& p_;
    GroupWalk walk_;
    int down_, across_;
};

// Distributes tiles to a cluster: first the pair of its own number, then, whenever both blocks want
// another one, the next pair that no cluster has taken. *taken counts these.
template <GroupForm form>
__device__ void deal(NextWork& next, const GroupProduct& p, int* taken) {
    Tiles<form> tiles(p);
    Work both[cluster];
    int pair = int(blockIdx.x) / cluster;
    for (uint32_t parity = 0;; parity ^= 1) {
        const bool found = tiles.find(pair, both);
        for (int rank = 0; rank < cluster; ++rank) send(&next.work, both[rank], &next.dealt, rank);
        if (!found) return;
        barrier_wait(&next.wanted, parity);
        pair = int(gridDim.x) / cluster + atomicAdd(taken, 1);
    }
}

}  // namespace ultrascale::ops
