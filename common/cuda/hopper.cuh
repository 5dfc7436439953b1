// Hopper's (sm_90a) instructions for moving tiles and for synchronization, as plain functions:
// barriers in shared memory that count bytes (mbarrier), and the copy engine that moves whole tiles
// and then signals a barrier (TMA). Clusters of blocks are in clusters.cuh, the matrix product and
// the layout of a tile in shared memory in wgmma.cuh.
//
//     memory                 shared memory                           registers
//     matrix -- tma_load --> tile --- wgmma -----------------------> sums: 64 x n, of 128 threads
//        ^      then the bytes                                          |  (a warpgroup)
//        |      arrive at `full`                                        |
//        +----- tma_store -- tile <---- stmatrix, fence_async_proxy ----+
//
// Section names in quotes are those of the PTX ISA: "Parallel Synchronization and Communication
// Instructions: mbarrier" and "Data Movement and Conversion Instructions: Bulk Tensor Copy". For
// other GPUs everything compiles to nothing: check hopper() (cuda_common.h) before a launch.
#pragma once

#include <cuda.h>  // CUtensorMap

#include <initializer_list>
#include <stdexcept>

#include "cuda_common.h"
#include "wgmma.cuh"

namespace ultrascale {

// ---- mbarrier -----------------------------------------------------------------------------------
// A barrier has phases 0, 1, 2, ... A phase is complete when `arrivals` threads have arrived and
// all bytes that they announced have been written; then the next phase begins. barrier_wait(b, p)
// waits until the phase of parity p, which is either the current one or the one before it, is
// complete: on a new barrier, waiting for parity 1 returns at once ("Phase of the mbarrier
// object").
//
//     full[stage]: data are here           empty[stage]: everybody has read them
//     producer  wait(empty, 1) arrive_expect(full, bytes), tma_load | next: wait(empty, 0) ...
//     consumer  wait(full, 0)  multiply  arrive(empty)              |       wait(full, 1)  ...
using Barrier = uint64_t;

__device__ inline void barrier_init(Barrier* barrier, int arrivals) {
    SM90A("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
          : "memory");
}
// Call it after the last barrier_init, then __syncthreads() or cluster_sync(): only then do other
// threads, and TMA, see the initialized barriers.
__device__ inline void barrier_init_fence() {
    SM90A("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(Barrier* barrier) {
    SM90A("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and makes the phase wait for that many bytes from tma_load.
__device__ inline void barrier_arrive_expect(Barrier* barrier, int bytes) {
    SM90A("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
          "r"(bytes)
          : "memory");
}
// Waits up to a time limit.
__device__ inline bool barrier_try_wait(Barrier* barrier, uint32_t parity) {
    uint32_t complete = 1;
    SM90A(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, "
        "p; }"
        : "=r"(complete)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
    return complete;
}
__device__ inline void barrier_wait(Barrier* barrier, uint32_t parity) {
    while (!barrier_try_wait(barrier, parity)) {
    }
}

// A position in a ring of stages. `parity` is the parity of the full barriers' phase in this round;
// it flips each time the ring wraps around.
template <int stages>
struct PipelineState {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};

// ---- warpgroups, registers ----------------------------------------------------------------------

// Waits at named barrier `id` (1 .. 15; __syncthreads is 0), which `threads` threads (whole warps)
// share.
template <int threads>
__device__ void sync_some(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(threads) : "memory");
}
template <int threads>  // arrives there without waiting
__device__ void arrive_some(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(threads) : "memory");
}

// Passes a number that is the same in all threads of a warp through a shuffle. So the compiler
// knows that it is uniform, and keeps values computed from it (wgmma's descriptors) in the warp's
// uniform registers, where wgmma needs them.
__device__ inline int same_in_warp(int number) { return __shfl_sync(0xffffffffu, number, 0); }

// Sets the number of registers per thread of this warpgroup from now on: a multiple of 8 in 24 ..
// 256. The block's total remains as at launch, so registers_more waits until other warpgroups have
// released theirs. All warps of the warpgroup must call it ("setmaxnreg").
template <int n>
__device__ void registers_more() {
    SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ void registers_fewer() {
    SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

// ---- TMA ----------------------------------------------------------------------------------------
// One thread requests a box of a matrix by its coordinates, fastest dimension first. Elements
// outside the matrix are read as zeros (and their bytes are counted), and are not written.

__device__ inline void tma_prefetch(const CUtensorMap* map) {
    SM90A("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

__device__ inline void tma_load(void* to, const CUtensorMap* map, Barrier* barrier, int x, int y) {
    SM90A(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4}], [%2];" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y)
        : "memory");
}
__device__ inline void tma_load(void* to, const CUtensorMap* map, Barrier* barrier, int x, int y,
                                int z, int w) {
    SM90A(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5, %6}], [%2];" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}

// Copies contiguous bytes; both addresses and the size are multiples of 16.
__device__ inline void bulk_load(void* to, const void* from, Barrier* barrier, int bytes) {
    SM90A(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// The thread that issues a store also commits it and waits for it. Beforehand, each thread that
// wrote the tile calls fence_async_proxy(), and then all of them synchronize: TMA and wgmma access
// shared memory through another path than ordinary loads and stores do (the "async proxy").
__device__ inline void fence_async_proxy() { SM90A("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ inline void tma_store(const CUtensorMap* map, const void* from, int x, int y) {
    SM90A("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(
              map),
          "r"(shared_address(from)), "r"(x), "r"(y)
          : "memory");
}
__device__ inline void tma_store(const CUtensorMap* map, const void* from, int x, int y, int z,
                                 int w) {
    SM90A(
        "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
        "[%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}
// Atomically adds to the values in memory; otherwise like a store. The matrix is fp32.
__device__ inline void tma_add(const CUtensorMap* map, const void* from, int x, int y, int z,
                               int w) {
    SM90A(
        "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, "
        "%5}], [%1];" ::"l"(map),
        "r"(shared_address(from)), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}
__device__ inline void tma_store_commit() { SM90A("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most `pending` committed groups have still to read their tiles; the other groups'
// tiles may be overwritten.
template <int pending>
__device__ void tma_store_wait_read() {
    SM90A("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// Atomically adds `bytes` (a multiple of 16) of int32 values to memory, where other blocks may add,
// too. It is committed and waited for like a store.
__device__ inline void bulk_add(int* to, const int* from, int bytes) {
    SM90A("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(to),
          "r"(shared_address(from)), "r"(bytes)
          : "memory");
}

// ---- on the host --------------------------------------------------------------------------------

struct TensorDimension {
    int64_t size;  // elements
    // From one element to the next: the element's size in the first dimension, a multiple of 16 in
    // the others.
    int64_t stride_bytes;
    // The tile's size in elements, up to 256; at most 128 bytes in the first dimension, because
    // rows are swizzled.
    int box;
};

// Describes a matrix of fp32, bf16 or bytes (fp8) to TMA; the fastest dimension comes first. `base`
// is a multiple of 16. Kernels take it as `const __grid_constant__ CUtensorMap`.
inline CUtensorMap tensor_map(const void* base, std::initializer_list<TensorDimension> dimensions) {
    using Encode = decltype(&cuTensorMapEncodeTiled);
    static const Encode encode = [] {  // looked up, since no program links with the driver
        void* function = nullptr;
        cudaDriverEntryPointQueryResult found;
        cuda_check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                    cudaEnableDefault, &found));
        if (found != cudaDriverEntryPointSuccess)
            throw std::runtime_error(
                "CUDA: this driver has no cuTensorMapEncodeTiled (it is older than 12.0)");
        return reinterpret_cast<Encode>(function);
    }();
    constexpr int most = 5;
    cuuint64_t sizes[most] = {}, strides[most] = {};
    cuuint32_t boxes[most] = {}, ones[most] = {1, 1, 1, 1, 1};
    int n = 0;
    for (const TensorDimension& d : dimensions) {
        sizes[n] = cuuint64_t(d.size), boxes[n] = cuuint32_t(d.box);
        if (n > 0) strides[n - 1] = cuuint64_t(d.stride_bytes);
        ++n;
    }
    const int64_t element = dimensions.begin()->stride_bytes;
    const CUtensorMapDataType type = element == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                     : element == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                    : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    CUtensorMap map;
    const CUresult result =
        encode(&map, type, cuuint32_t(n), const_cast<void*>(base), sizes, strides, boxes, ones,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS)
        throw std::runtime_error("CUDA: no tensor map for this matrix (error " +
                                 std::to_string(int(result)) +
                                 "): an address or stride is no multiple of 16 bytes, or a box has "
                                 "more than 256 elements or 128 bytes");
    return map;
}

}  // namespace ultrascale
