// How the work of attention_wgmma_backward.cu is divided among its blocks.
#pragma once

#include <vector>

#include "attention_wgmma_sums.cuh"

namespace ultrascale::ops {

// A block processes a tile of keys, for all query heads that share them. If that would leave
// multiprocessors idle, a tile's queries are divided among several blocks (pieces), whose dK and dV
// are then added up in order. This is the work of one launch: tiles begin .. end - 1 of an order,
// each in `of_tile` pieces.
struct Pieces {
    TileOrder order;
    int begin, end, of_tile;
    // (2, of_tile, tiles, 128, D): each piece's dV and dK, without scale; null if of_tile is 1
    float* sums = nullptr;
    __host__ __device__ int tiles() const { return end - begin; }
    __host__ __device__ int count() const { return tiles() * of_tile; }
};

// The keys, and the piece of their queries, that block number `index` of a launch processes.
struct KeyTile {
    int b, h, first, number, piece;  // number: counted from the launch's first tile
    __device__ KeyTile(const Pieces& pieces, int index)
        : number(index / pieces.of_tile), piece(index % pieces.of_tile) {
        const Tile tile = pieces.order.at(pieces.begin + number);
        b = tile.b, h = tile.h, first = tile.rank * backward_keys;
    }
};

// Defined in attention_wgmma_pieces.cu. The launches that process all tiles, one after the other.
std::vector<Pieces> divided(const TileOrder& order, const AttentionSizes& s,
                            const DeviceMask& mask);
// Allocates the sums; empty if there is only one piece.
Tensor piece_sums(Pieces& pieces, int64_t D);
// dk and dv (bf16 or fp32) of the launch's tiles; `add`: they are added to.
void add_pieces(const Tensor& dk, const Tensor& dv, const Pieces& pieces, const AttentionSizes& s,
                bool add);

}  // namespace ultrascale::ops
