// Hopper's asynchronous matrix product (sm_90a), wgmma: the 128 threads of a warpgroup issue it
// together; it reads its operands from shared memory and runs while the threads go on.
//
//     sum (64, n) = A (64, 16) B (16, n) + sum       bf16 in, fp32 out; n = 64, 128, 256
//
//     wgmma_fence();
//     wgmma(sum, k_major(a, 0), k_major(b, 0), false);
//     wgmma(sum, k_major(a, 1), k_major(b, 1), true);  ...
//     wgmma_commit(); ... wgmma_wait<0>(sum);
//
// Warp w of the four holds rows 16 w .. 16 w + 15; sum[j] holds columns 8 j .. 8 j + 7, laid out
// like C in mma.cuh ("Register Fragments for wgmma.mma_async.m64nNk16"). A may be in registers,
// laid out like A in mma.cuh. Until wgmma_wait, sum and A's registers must not be touched.
//
// In shared memory A and B are tiles: rows of 128 bytes (64 bf16), at an address that is a multiple
// of 1024. Chunk c (16 bytes) of row r lies at c ^ (r % 8): TMA writes this layout with
// CU_TENSOR_MAP_SWIZZLE_128B, and mma.cuh's tile_chunk<64> computes it. A wider matrix consists of
// several tiles.
//
//     K-major: a row is 64 k of one row of A,        MN-major: a row is one k of 64 rows of A,
//              or of one column of B (Q K^T)                   or of 64 columns of B (P V)
//
// Section names in quotes are those of the PTX ISA, "Asynchronous Warpgroup Level Matrix
// Multiply-Accumulate Instructions".
#pragma once

#include "mma.cuh"
#include "sm90.cuh"

namespace ultrascale {

// Descriptors ("Matrix Descriptor Format"): bits 0-13 address, 16-29 leading byte offset, 32-45
// stride byte offset, each / 16; 62-63: 1 for the 128-byte swizzle. A step of 16 k inside a tile
// only adds to the address, because the swizzle applies to address bits ("Strides").
__device__ inline uint64_t wgmma_descriptor(const void* tile, int leading_bytes, int stride_bytes) {
    return uint64_t((shared_address(tile) & 0x3ffff) >> 4) | uint64_t(leading_bytes >> 4) << 16 |
           uint64_t(stride_bytes >> 4) << 32 | uint64_t(1) << 62;
}
// The descriptor for an address that lies `elements` elements (bf16) further on: one addition,
// whereas computing it anew would take four instructions.
__device__ inline uint64_t further(uint64_t descriptor, int elements) {
    return descriptor + uint64_t(elements / 8);
}
// K-major, k = 16 k16 .. 16 k16 + 15 of a tile: the next 8 rows lie 1024 bytes further on; the
// leading offset is not used.
__device__ inline uint64_t k_major(const Element* tile, int k16) {
    return further(wgmma_descriptor(tile, 16, 1024), 16 * k16);
}
// MN-major, k = 16 k16 .. 16 k16 + 15 of a tile of `rows` k: the next 8 k lie 1024 bytes further
// on, the next 64 columns in the following tile.
__device__ inline uint64_t mn_major(const Element* tile, int k16, int rows) {
    return further(wgmma_descriptor(tile, rows * 128, 1024), 16 * k16 * 64);
}

// Needed before the first wgmma after its registers (sum, A) were written, and between products of
// different shapes.
__device__ inline void wgmma_fence() { SM90A("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { SM90A("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Keeps the compiler from moving reads or writes of these registers across this line: it does not
// know that a product is still running.
template <int tiles>
__device__ void hold(float (&sum)[tiles][4]) {
#pragma unroll
    for (int j = 0; j < tiles; ++j)
        SM90A("" : "+f"(sum[j][0]), "+f"(sum[j][1]), "+f"(sum[j][2]), "+f"(sum[j][3])::"memory");
}
template <int tiles>
__device__ void hold(uint32_t (&a)[tiles][4]) {  // the same for A
#pragma unroll
    for (int j = 0; j < tiles; ++j)
        SM90A("" : "+r"(a[j][0]), "+r"(a[j][1]), "+r"(a[j][2]), "+r"(a[j][3])::"memory");
}
// Waits until at most `pending` committed groups are in flight. All four warps execute a product
// together, so once any warp has passed the wait, the product has read all its operands, and one
// thread may release the stage (as CUTLASS does).
template <int pending, int tiles>
__device__ void wgmma_wait(float (&sum)[tiles][4]) {
    SM90A("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    hold(sum);
}

// Lists of registers: R0 .. R3 are operands 0-31, 32-63, ...; S32(d, j) are the sums of tiles j ..
// j + 7.
#define R0                                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%" \
    "25,%26,%27,%28,%29,%30,%31"
#define R1                                                                                         \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54," \
    "%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define R2                                                                                         \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86," \
    "%87,%88,%89,%90,%91,%92,%93,%94,%95"
#define R3                                                                                         \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%" \
    "115,%116,%117,%118,%119,%120,%121,%122,"                                                      \
    "%123,%124,%125,%126,%127"
#define S4(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define S16(d, j) S4(d, j), S4(d, j + 1), S4(d, j + 2), S4(d, j + 3)
#define S32(d, j) S16(d, j), S16(d, j + 4)

// The instruction for n columns, given the registers of the sums and the operands that follow them.
// If `add` is false, sum = A B.
#define WGMMA(n, registers, a, b, add, transposes)                                    \
    "{ .reg .pred p; setp.ne.b32 p, " add ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
    "k16.f32.bf16.bf16 {" registers "}, " a ", " b ", p, 1, 1, " transposes "; }"
#define WGMMA_FP8(n, types, registers, a, b, add)                                     \
    "{ .reg .pred p; setp.ne.b32 p, " add ", 0; wgmma.mma_async.sync.aligned.m64n" #n \
    "k32.f32." types " {" registers "}, " a ", " b ", p, 1, 1; }"

enum class Major { k, mn };  // which of a tile's two indices runs along its rows

// A and B from shared memory; only the first `used` of the sums' tiles.
template <Major a_major = Major::k, Major b_major = Major::k, int used = 0, int tiles>
__device__ void wgmma(float (&sum)[tiles][4], uint64_t a, uint64_t b, bool add) {
    constexpr int n = used > 0 ? used : tiles;
    static_assert(n <= tiles && (n == 8 || n == 16 || n == 32));
#define INPUTS "l"(a), "l"(b), "r"(int(add)), "n"(int(a_major)), "n"(int(b_major))
    if constexpr (n == 8)
        SM90A(WGMMA(64, R0, "%32", "%33", "%34", "%35, %36") : S32(sum, 0) : INPUTS);
    if constexpr (n == 16)
        SM90A(WGMMA(128, R0 "," R1, "%64", "%65", "%66", "%67, %68")
              : S32(sum, 0), S32(sum, 8)
              : INPUTS);
    if constexpr (n == 32)
        SM90A(WGMMA(256, R0 "," R1 "," R2 "," R3, "%128", "%129", "%130", "%131, %132")
              : S32(sum, 0), S32(sum, 8), S32(sum, 16), S32(sum, 24)
              : INPUTS);
#undef INPUTS
}
// A from registers.
template <Major b_major = Major::k, int tiles>
__device__ void wgmma(float (&sum)[tiles][4], const uint32_t (&a)[4], uint64_t b, bool add) {
    static_assert(tiles == 8 || tiles == 16 || tiles == 32);
#define INPUTS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)), "n"(int(b_major))
    if constexpr (tiles == 8)
        SM90A(WGMMA(64, R0, "{%32, %33, %34, %35}", "%36", "%37", "%38") : S32(sum, 0) : INPUTS);
    if constexpr (tiles == 16)
        SM90A(WGMMA(128, R0 "," R1, "{%64, %65, %66, %67}", "%68", "%69", "%70")
              : S32(sum, 0), S32(sum, 8)
              : INPUTS);
    if constexpr (tiles == 32)
        SM90A(
            WGMMA(256, R0 "," R1 "," R2 "," R3, "{%128, %129, %130, %131}", "%132", "%133", "%134")
            : S32(sum, 0), S32(sum, 8), S32(sum, 16), S32(sum, 24)
            : INPUTS);
#undef INPUTS
}
// For fp8. Both operands are K-major; b is e4m3, and a is e4m3 or e5m2. 32 k take as many bytes as
// 16 k in bf16. sum (64, 128) or (64, 256).
template <bool a_e5m2 = false, int tiles>
__device__ void wgmma_fp8(float (&sum)[tiles][4], uint64_t a, uint64_t b, bool add) {
    static_assert(tiles == 16 || (tiles == 32 && !a_e5m2));
#define INPUTS "l"(a), "l"(b), "r"(int(add))
    if constexpr (tiles == 16 && !a_e5m2)
        SM90A(WGMMA_FP8(128, "e4m3.e4m3", R0 "," R1, "%64", "%65", "%66")
              : S32(sum, 0), S32(sum, 8)
              : INPUTS);
    if constexpr (tiles == 16 && a_e5m2)
        SM90A(WGMMA_FP8(128, "e5m2.e4m3", R0 "," R1, "%64", "%65", "%66")
              : S32(sum, 0), S32(sum, 8)
              : INPUTS);
    if constexpr (tiles == 32)
        SM90A(WGMMA_FP8(256, "e4m3.e4m3", R0 "," R1 "," R2 "," R3, "%128", "%129", "%130")
              : S32(sum, 0), S32(sum, 8), S32(sum, 16), S32(sum, 24)
              : INPUTS);
#undef INPUTS
}
#undef R0
#undef R1
#undef R2
#undef R3
#undef S4
#undef S16
#undef S32
#undef WGMMA
#undef WGMMA_FP8

// Stores four 8 x 8 matrices from a warp's registers ("stmatrix"). Lane l gives the address of row
// l % 8 of matrix l / 8, and holds two elements of each matrix, as in half of a C tile (mma.cuh):
// row l / 4, columns 2 (l % 4) and the next.
__device__ inline void stmatrix(Element* address, uint32_t r0, uint32_t r1, uint32_t r2,
                                uint32_t r3) {
    SM90A("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
              shared_address(address)),
          "r"(r0), "r"(r1), "r"(r2), "r"(r3)
          : "memory");
}

}  // namespace ultrascale
