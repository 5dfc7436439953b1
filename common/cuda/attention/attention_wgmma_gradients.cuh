// How attention_wgmma_backward.cu stores dV and dK: whole tiles through TMA, or those of a piece of
// the queries.
#pragma once

#include "attention_wgmma_backward.cuh"

namespace ultrascale::ops {

template <int D>
__device__ void store_piece(const Pieces& pieces, const KeyTile& tile, int first_key,
                            const float (&dv)[D / 8][4], const float (&dk)[D / 8][4]) {
    constexpr int64_t numel = backward_keys * D;
    float* const to = pieces.results + tile.index(pieces) * numel;
    const int lane = int(thread_here()) % 32;
    store_rows<D>(to, first_key - tile.first, lane, dv);
    store_rows<D>(to + pieces.count() * numel, first_key - tile.first, lane, dk);
}

// The destination of dV and dK: bf16, or fp32, where they may be added to the present values. (If
// this were not a constant, registers would spill.)
struct NarrowOutput {
    CUtensorMap dk, dv;
    static constexpr bool add = false;
};
template <bool adds>
struct WideOutput {
    CUtensorMap dk, dv;
    static constexpr bool add = adds;
};

// TMA copies them from the warp's own `place`, which dQ's parts use before. A warp that writes
// there first waits until TMA has read the previous contents; it sends when all lanes have written.
__device__ inline void make_room() {
    if (first_lane()) tma_store_wait_read<0>();
    __syncwarp();
}
template <class Send>
__device__ void send_written(Send&& send) {
    fence_async_proxy();
    __syncwarp();
    if (first_lane()) send(), tma_store_commit();
}

// Stores dV and dK at once if there is room. (TMA omits rows from Tk on.)
template <int D>
__device__ void store_whole(const NarrowOutput& out, int* to, const KeyTile& tile, int first_key,
                            const float (&dv)[D / 8][4], const float (&dk)[D / 8][4],
                            const AttentionSizes& s) {
    Element *const to_shared = reinterpret_cast<Element*>(to), *const behind =
                                                                   D == 128 ? to_shared
                                                                            : to_shared + 16 * D;
    const int part = tile.h * BackwardShape<D>::parts;
    make_room();
    store_fragments<D, 16>(to_shared, 0, dv, 1, 1);
    send_written([&] { tma_store(&out.dv, to_shared, 0, first_key, part, tile.b); });
    if (behind == to_shared) make_room();
    store_fragments<D, 16>(behind, 0, dk, s.scale(), s.scale());
    send_written([&] { tma_store(&out.dk, behind, 0, first_key, part, tile.b); });
}

// Stores 64 columns of fp32 at a time, as two tiles of 32: there is room for no more.
template <int D, bool add>
__device__ void store_columns(const CUtensorMap* map, float* to_shared, const KeyTile& tile,
                              int first_key, const float (&rows)[D / 8][4], float factor) {
    const int lane = int(thread_here()) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int half = 0; half < D / 64; ++half) {
        make_room();
#pragma unroll
        for (int j = 0; j < 8; ++j) {
            const float(&x)[4] = rows[8 * half + j];
            // Chunk c of a row r, 16 bytes, lies at c ^ (r % 8) (wgmma.cuh); g + 8 is like g.
            float* const to =
                to_shared + j / 4 * (16 * 32) + g * 32 + ((j % 4 * 2 + t / 2) ^ g) * 4 + t % 2 * 2;
            *reinterpret_cast<float2*>(to) = {x[0] * factor, x[1] * factor};
            *reinterpret_cast<float2*>(to + 8 * 32) = {x[2] * factor, x[3] * factor};
        }
        const int part = (tile.h * (D / 64) + half) * 2;
        send_written([&] {
            add ? tma_add(map, to_shared, 0, first_key, part, tile.b)
                : tma_store(map, to_shared, 0, first_key, part, tile.b);
        });
    }
}
template <int D, bool add>
__device__ void store_whole(const WideOutput<add>& out, int* to_shared, const KeyTile& tile,
                            int first_key, const float (&dv)[D / 8][4], const float (&dk)[D / 8][4],
                            const AttentionSizes& s) {
    float* const to = reinterpret_cast<float*>(to_shared);
    store_columns<D, add>(&out.dv, to, tile, first_key, dv, 1);
    store_columns<D, add>(&out.dk, to, tile, first_key, dk, s.scale());
}

// Stores a warp's rows of dV and dK, or of a piece of them. `to_shared` is the warp's own.
template <int D, class Output>
__device__ void store_gradients(const Output& out, const Pieces& pieces, int* to_shared,
                                const KeyTile& tile, int first_key, const float (&dv)[D / 8][4],
                                const float (&dk)[D / 8][4], const AttentionSizes& s) {
    if (pieces.per_tile > 1)
        store_piece<D>(pieces, tile, first_key, dv, dk);
    else
        store_whole<D>(out, to_shared, tile, first_key, dv, dk, s);
}

}  // namespace ultrascale::ops
