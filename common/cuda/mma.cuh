// Tensor-core instructions that every GPU since Ampere has (sm_80), as plain functions: tiles are
// copied to shared memory (cp.async), loaded from there into registers (ldmatrix), and multiplied
// (mma.sync m16n8k16, bf16 in, fp32 out).
//
// A tile is ROWS x D bf16 in shared memory, row after row. Its 16-byte chunks are swizzled: chunk c
// of row r lies at place c ^ (r % 8) of the row. Rows are a multiple of 128 bytes, so without the
// swizzle the eight rows that one ldmatrix reads would lie in the same banks.
//
// Which lane holds which elements (lane = 0..31, g = lane / 4, t = lane % 4), PTX ISA, "Matrix
// Fragments for mma.m16n8k16":
//   A (16 x 16, rows x k)   a[0]: row g, k 2t..2t+1   a[1]: row g + 8
//                           a[2]: row g, k + 8        a[3]: row g + 8, k + 8
//   B (16 x 8, k x columns) b[0]: k 2t..2t+1, column g   b[1]: k + 8
//   C (16 x 8)              c[0], c[1]: row g, columns 2t, 2t+1   c[2], c[3]: row g + 8
// So two neighbouring C tiles, rounded to bf16, form one A tile: this is how P = softmax(S) enters
// the next product without leaving the registers.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace ultrascale {

using Element = __nv_bfloat16;

__device__ inline uint32_t shared_address(const void* pointer) {
    return uint32_t(__cvta_generic_to_shared(pointer));
}

// Copies 16 bytes to shared memory, or writes 16 zeros if `valid` is false (then `from` is not
// read).
__device__ inline void copy_async(void* to, const void* from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(valid ? 16 : 0));
}
__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;"); }
template <int pending>
__device__ void copy_async_wait() {  // until at most `pending` committed groups are in flight
    asm volatile("cp.async.wait_group %0;" ::"n"(pending));
}

template <int D>
__device__ Element* tile_chunk(Element* tile, int row, int chunk) {
    return tile + row * D + ((chunk ^ (row & 7)) * 8);
}

// Loads rows first .. first + ROWS - 1 of a matrix whose rows are `stride` elements apart; rows
// from `end` on are zeros.
template <int ROWS, int D, int THREADS>
__device__ void load_tile(Element* tile, const Element* matrix, int64_t stride, int64_t first,
                          int64_t end) {
    constexpr int chunks = D / 8;
    static_assert(ROWS * chunks % THREADS == 0);
#pragma unroll
    for (int i = 0; i < ROWS * chunks / THREADS; ++i) {
        const int index = i * THREADS + int(threadIdx.x), row = index / chunks,
                  chunk = index % chunks;
        const bool valid = first + row < end;
        copy_async(tile_chunk<D>(tile, row, chunk),
                   matrix + (valid ? first + row : 0) * stride + chunk * 8, valid);
    }
}

// One warp stores rows first .. first + ROWS - 1 from shared memory to a matrix; rows from `end` on
// are omitted.
template <int ROWS, int D>
__device__ void store_rows(Element* tile, int tile_row, Element* matrix, int64_t stride,
                           int64_t first, int64_t end) {
    constexpr int chunks = D / 8;
    const int lane = int(threadIdx.x) % 32;
    __syncwarp();
    for (int index = lane; index < ROWS * chunks; index += 32) {
        const int row = index / chunks, chunk = index % chunks;
        if (first + row < end)
            *reinterpret_cast<uint4*>(matrix + (first + row) * stride + chunk * 8) =
                *reinterpret_cast<const uint4*>(tile_chunk<D>(tile, tile_row + row, chunk));
    }
}

__device__ inline void ldmatrix(uint32_t (&r)[4], const Element* address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(address)));
}
__device__ inline void ldmatrix_transposed(uint32_t (&r)[4], const Element* address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(address)));
}

// Loads A: rows row .. row+15, columns 16 k .. 16 k + 15 of the tile.
template <int D>
__device__ void load_a(uint32_t (&a)[4], Element* tile, int row, int k) {
    const int lane = int(threadIdx.x) % 32;
    ldmatrix(a, tile_chunk<D>(tile, row + lane % 16, 2 * k + lane / 16));
}
// Loads two neighbouring B tiles, B = tile^T: their columns are the tile's rows row .. row+15,
// their k are its columns 16 k .. 16 k + 15.
template <int D>
__device__ void load_b_rows(uint32_t (&b)[4], Element* tile, int row, int k) {
    const int lane = int(threadIdx.x) % 32;
    ldmatrix(b, tile_chunk<D>(tile, row + lane / 16 * 8 + lane % 8, 2 * k + lane / 8 % 2));
}
// Loads two neighbouring B tiles, B = tile: their k are the tile's rows row .. row+15, their
// columns are its columns 16 n .. 16 n + 15.
template <int D>
__device__ void load_b_columns(uint32_t (&b)[4], Element* tile, int row, int n) {
    const int lane = int(threadIdx.x) % 32;
    ldmatrix_transposed(b, tile_chunk<D>(tile, row + lane % 16, 2 * n + lane / 16));
}

// c += a b
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// The C tiles 2 j and 2 j + 1 += a times the two B tiles that load_b_rows or load_b_columns loaded.
template <int n>
__device__ void mma_pair(float (&c)[n][4], int j, const uint32_t (&a)[4], const uint32_t (&b)[4]) {
    mma(c[2 * j], a, b[0], b[1]);
    mma(c[2 * j + 1], a, b[2], b[3]);
}

__device__ inline uint32_t pack(float low, float high) {
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&both);
}
// Converts two neighbouring C tiles to one A tile.
__device__ inline void as_a(uint32_t (&a)[4], const float (&left)[4], const float (&right)[4]) {
    a[0] = pack(left[0], left[1]);
    a[1] = pack(left[2], left[3]);
    a[2] = pack(right[0], right[1]);
    a[3] = pack(right[2], right[3]);
}

// Stores C tiles of 16 rows to the tile's rows row .. row+15, multiplied by one factor for this
// thread's row g and another for row g + 8.
template <int D>
__device__ void store_c(Element* tile, int row, const float (&c)[D / 8][4], float factor_low,
                        float factor_high) {
    const int lane = int(threadIdx.x) % 32, g = lane / 4, t = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const float factor = r == 0 ? factor_low : factor_high;
#pragma unroll
        for (int j = 0; j < D / 8; ++j)
            *reinterpret_cast<uint32_t*>(tile_chunk<D>(tile, row + r * 8 + g, j) + 2 * t) =
                pack(c[j][2 * r] * factor, c[j][2 * r + 1] * factor);
    }
}

}  // namespace ultrascale
