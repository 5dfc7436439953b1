// How the work of Hopper's attention kernels is divided among their blocks.
#pragma once

#include <vector>

#include "attention_wgmma.cuh"

namespace ultrascale::ops {

// A block processes a tile: in forward a tile of queries, with all keys that they see; in backward
// a tile of keys, with all queries that see them. If that would leave multiprocessors idle, a
// tile's work on the other side is divided among several blocks (pieces), whose results are then
// merged in order. This is the work of one launch: tiles begin .. end - 1 of an order, each in
// `per_tile` pieces.
struct Pieces {
    TileOrder order;
    int begin, end, per_tile;
    float* results = nullptr;  // those of all pieces; null if per_tile is 1
    __host__ __device__ int tiles() const { return end - begin; }
    __host__ __device__ int count() const { return tiles() * per_tile; }
};

// The tile, and the piece of it, that block number `index` of a launch processes.
struct TilePiece {
    int b, h, rank, number, piece;  // number: counted from the launch's first tile
    __device__ TilePiece(const Pieces& pieces, int index)
        : number(index / pieces.per_tile), piece(index % pieces.per_tile) {
        const Tile tile = pieces.order.at(pieces.begin + number);
        b = tile.b, h = tile.h, rank = tile.rank;
    }
    // The piece's part of `all` tiles of the other side: from the first up to, but not including,
    // the last.
    __device__ int first_of(int all, int per_tile) const {
        return int(int64_t(all) * piece / per_tile);
    }
    __device__ int last_of(int all, int per_tile) const {
        return int(int64_t(all) * (piece + 1) / per_tile);
    }
    // The place of its result among the results of all pieces.
    __device__ int64_t index(const Pieces& pieces) const {
        return int64_t(piece) * pieces.tiles() + number;
    }
};

// Stores a warp's 16 rows of a piece (mma.cuh) at row first_row of a tile (rows, D).
template <int D>
__device__ void store_rows(float* tile, int first_row, int lane, const float (&rows)[D / 8][4],
                           float low = 1, float high = 1) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float2* const row =
            reinterpret_cast<float2*>(tile + (first_row + lane / 4 + 8 * r) * D + lane % 4 * 2);
        const float factor = r == 0 ? low : high;
#pragma unroll
        for (int j = 0; j < D / 8; ++j)
            row[4 * j] = {rows[j][2 * r] * factor, rows[j][2 * r + 1] * factor};
    }
}

// The launches that process all tiles, one after the other, if a tile takes this many steps. `few`:
// also if there are only few tiles. Defined in attention_wgmma_pieces.cu.
std::vector<Pieces> divided(const TileOrder& order, int64_t steps, const DeviceMask& mask,
                            bool few);
// Allocates results of `numel` fp32 numbers each; empty if there is only one piece.
Tensor piece_results(Pieces& pieces, int64_t numel);

// A piece of a tile's keys has O, followed by the queries' log-sum-exps.
template <int D>
constexpr int forward_piece(int queries) {
    return queries * (D + 1);
}
// Merges the pieces into o and lse, for head dimension s.D.
void merge_pieces(const Tensor& o, const Tensor& lse, const Pieces& pieces,
                  const AttentionSizes& s);
// A piece of a tile's queries has dV, and then dK without scale. Adds the pieces up to dk and dv
// (bf16 or fp32) of the launch's tiles. With `add`, the sums are added to dk and dv.
void add_pieces(const Tensor& dk, const Tensor& dv, const Pieces& pieces, const AttentionSizes& s,
                bool add);

}  // namespace ultrascale::ops
