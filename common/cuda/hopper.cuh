// What Hopper (sm_90a) has for moving tiles and for waiting, as plain functions: barriers in shared
// memory that count bytes (mbarrier), the copy engine that moves whole tiles and then tells a
// barrier (TMA), clusters of blocks. wgmma.cuh: the product, and how a tile lies in shared memory.
//
//     memory                 shared memory                           registers
//     matrix -- tma_load --> tile --- wgmma -----------------------> sums: 64 x n, of 128 threads
//        ^      then the bytes                                          |  (a warpgroup)
//        |      arrive at `full`                                        |
//        +----- tma_store -- tile <---- stmatrix, fence_async_proxy ----+
//
// Sections are those of the PTX ISA: "Parallel Synchronization and Communication Instructions:
// mbarrier" and "Data Movement and Conversion Instructions: Bulk Tensor Copy". For other GPUs
// everything compiles to nothing: whoever launches asks hopper() (cuda_common.h) before.
#pragma once

#include <cuda.h>  // CUtensorMap

#include <initializer_list>
#include <stdexcept>

#include "cuda_common.h"
#include "wgmma.cuh"

namespace ultrascale {

// ---- mbarrier -----------------------------------------------------------------------------------
// A barrier has phases 0, 1, 2, ... A phase is complete when `arrivals` threads have arrived and
// all bytes that they announced have come; then the next one begins. barrier_wait(b, p) returns
// when the phase of parity p that is the current one, or the one before it, is complete: on a new
// barrier waiting for parity 1 returns at once ("Phase of the mbarrier object").
//
//     full[stage]: data are here           empty[stage]: everybody has read them
//     producer  wait(empty, 1) arrive_expect(full, bytes), tma_load | next: wait(empty, 0) ...
//     consumer  wait(full, 0)  multiply  arrive(empty)              |       wait(full, 1)  ...
using Barrier = uint64_t;

__device__ inline void barrier_init(Barrier* barrier, int arrivals) {
    SM90A("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals)
          : "memory");
}
// After the last barrier_init; then __syncthreads() or cluster_sync(): others, TMA too, see the
// barriers only so.
__device__ inline void barrier_init_fence() {
    SM90A("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void barrier_arrive(Barrier* barrier) {
    SM90A("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
// Arrives, and the phase waits for that many bytes of tma_load.
__device__ inline void barrier_arrive_expect(Barrier* barrier, int bytes) {
    SM90A("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
          "r"(bytes)
          : "memory");
}
// At the same barrier of block `rank` of the cluster, which may be this one. It says that tiles
// have been read, and publishes no stores: with .release.cluster it would also wait until all
// stores of this thread are visible everywhere.
__device__ inline void barrier_arrive_at(Barrier* barrier, uint32_t rank) {
    SM90A(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(barrier)),
        "r"(rank)
        : "memory");
}
__device__ inline bool barrier_try_wait(Barrier* barrier, uint32_t parity) {  // waits for a while
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

// A place in a ring of stages. The parity is that of the full barriers' phase in this round, and
// changes with each round.
template <int stages>
struct RingPlace {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};

// ---- clusters, warpgroups, registers ------------------------------------------------------------

// A kernel with clusters: CLUSTER in sm90.cuh.
__device__ inline uint32_t cluster_rank() {
    uint32_t rank = 0;
    SM90A("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// All threads of all blocks of the cluster. A block that others write to or arrive at must not end
// before they have.
__device__ inline void cluster_sync() {
    SM90A("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

// Barrier `id` (1 .. 15; __syncthreads is 0) for `threads` threads, whole warps.
template <int threads>
__device__ void sync_some(int id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(threads) : "memory");
}
template <int threads>  // one of them that does not wait
__device__ void arrive_some(int id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(threads) : "memory");
}

// A number that all threads of a warp have, by way of a shuffle: so the compiler sees that they do,
// and keeps what follows from it (wgmma's descriptors) in the warp's uniform registers, where wgmma
// wants it.
__device__ inline int same_in_warp(int number) { return __shfl_sync(0xffffffffu, number, 0); }

// Registers of each thread of this warpgroup from here on: a multiple of 8 in 24 .. 256. A block's
// registers stay as many as at its launch: _more waits until others have given theirs back. All
// warps of the warpgroup call it ("setmaxnreg").
template <int n>
__device__ void registers_more() {
    SM90A("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(n));
}
template <int n>
__device__ void registers_fewer() {
    SM90A("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(n));
}

// ---- TMA ----------------------------------------------------------------------------------------
// One thread asks for a box of a matrix by its coordinates, the fastest dimension first. What lies
// outside of the matrix is read as zeros (and its bytes are counted) and is not written.

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
// To the same place in all blocks of the cluster whose bits are set in `blocks`; the bytes arrive
// at the same barrier of each.
__device__ inline void tma_load_multicast(void* to, const CUtensorMap* map, Barrier* barrier,
                                          uint16_t blocks, int x, int y) {
    SM90A(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
        "multicast::cluster [%0], [%1, {%3, %4}], [%2], "
        "%5;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(blocks)
        : "memory");
}

// Bytes that lie together, both addresses and the number multiples of 16.
__device__ inline void bulk_load(void* to, const void* from, Barrier* barrier, int bytes) {
    SM90A(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier))
        : "memory");
}

// Stores are committed and waited for by the thread that began them. Before: each thread that wrote
// the tile calls fence_async_proxy(), then they meet at a barrier; for TMA and wgmma see shared
// memory by another way than loads and stores do ("async proxy").
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
__device__ inline void tma_store_commit() { SM90A("cp.async.bulk.commit_group;" ::: "memory"); }
// until at most `pending` committed groups have not read their tiles yet: the others' tiles may be
// written again
template <int pending>
__device__ void tma_store_wait_read() {
    SM90A("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

// Adds integers to as many in memory, which other blocks may add to as well; a multiple of 16
// bytes. Committed and waited for as stores are.
__device__ inline void bulk_add(int* to, const int* from, int bytes) {
    SM90A("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(to),
          "r"(shared_address(from)), "r"(bytes)
          : "memory");
}

// ---- on the host --------------------------------------------------------------------------------

struct TensorDimension {
    int64_t size;          // elements
    // from one to the next: of the first dimension the element's size, of others a multiple of 16
    int64_t stride_bytes;
    // elements of a tile, up to 256; the first dimension's are 128 bytes at most, as rows are
    // swizzled
    int box;
};

// What TMA has to know of a matrix of bf16 or bytes (fp8): the fastest dimension first. `base` is a
// multiple of 16. A kernel's parameter is `const __grid_constant__ CUtensorMap`.
inline CUtensorMap tensor_map(const void* base, std::initializer_list<TensorDimension> dimensions) {
    using Encode = decltype(&cuTensorMapEncodeTiled);
    static const Encode encode = [] {  // the driver's, and no program links with the driver
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
    const CUtensorMapDataType type = dimensions.begin()->stride_bytes == 1
                                         ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                         : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
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

// Clusters of this kernel that the device runs at once: fewer than SMs / cluster where its groups
// of SMs are no multiples of the cluster.
template <class... Parameters>
int clusters_at_once(void (*kernel)(Parameters...), int cluster, int threads, size_t shared_bytes) {
    cuda_check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    int(shared_bytes)));
    cudaLaunchAttribute size;
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim = {unsigned(cluster), 1, 1};
    const cudaLaunchConfig_t config = {
        unsigned(cluster), unsigned(threads), shared_bytes, cuda_compute(), &size, 1};
    int clusters = 0;
    cuda_check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config));
    return clusters;
}

}  // namespace ultrascale
