// Clusters: blocks that run at the same time on neighbouring SMs of a Hopper, load tiles for each
// other, and signal each other's barriers. CLUSTER (sm90.cuh) declares a kernel with them, and
// hopper.cuh says what a barrier is. Section names in quotes are those of the PTX ISA.
#pragma once

#include "hopper.cuh"

namespace ultrascale {

__device__ inline uint32_t cluster_rank() {
    uint32_t rank = 0;
    SM90A("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// A barrier for all threads of all blocks of the cluster. A block must not exit while other blocks
// may still write to its shared memory or arrive at its barriers.
__device__ inline void cluster_sync() {
    SM90A("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

// Arrives at the same barrier in block `rank` of the cluster, which may be this block. It signals
// that tiles have been read and publishes no stores: with .release.cluster it would also wait until
// all of this thread's stores are visible everywhere.
__device__ inline void barrier_arrive_at(Barrier* barrier, uint32_t rank) {
    SM90A(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
        "mbarrier.arrive.shared::cluster.b64 _, [there]; }" ::"r"(shared_address(barrier)),
        "r"(rank)
        : "memory");
}
// Stores a value of 16 n bytes at the same place in block `rank` of the cluster, and arrives at the
// same barrier there when it has been stored ("st.async").
template <class T>
__device__ void send(T* to, const T& value, Barrier* barrier, uint32_t rank) {
    static_assert(sizeof(T) % sizeof(int4) == 0);
    SM90A(
        "{ .reg .b32 there; mapa.shared::cluster.u32 there, %0, %2; "
        "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [there], %1; }" ::"r"(
            shared_address(barrier)),
        "n"(int(sizeof(T))), "r"(rank)
        : "memory");
    for (int i = 0; i < int(sizeof(T) / sizeof(int4)); ++i) {
        const int4 part = reinterpret_cast<const int4*>(&value)[i];
        SM90A(
            "{ .reg .b32 there, its_barrier; mapa.shared::cluster.u32 there, %0, %2; "
            "mapa.shared::cluster.u32 its_barrier, %1, %2; "
            "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [there], "
            "{%3, %4, %5, %6}, [its_barrier]; }" ::"r"(
                shared_address(reinterpret_cast<int4*>(to) + i)),
            "r"(shared_address(barrier)), "r"(rank), "r"(part.x), "r"(part.y), "r"(part.z),
            "r"(part.w)
            : "memory");
    }
}

// Loads to the same place in every block of the cluster whose bit is set in `blocks`; the bytes are
// counted at the same barrier of each.
__device__ inline void tma_load_multicast(void* to, const CUtensorMap* map, Barrier* barrier,
                                          uint16_t blocks, int x, int y) {
    SM90A(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
        "multicast::cluster [%0], [%1, {%3, %4}], [%2], "
        "%5;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "h"(blocks)
        : "memory");
}
__device__ inline void tma_load_multicast(void* to, const CUtensorMap* map, Barrier* barrier,
                                          uint16_t blocks, int x, int y, int z, int w) {
    SM90A(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes."
        "multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], "
        "%7;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(x), "r"(y), "r"(z), "r"(w), "h"(blocks)
        : "memory");
}

// How many clusters of this kernel the device runs at once: fewer than SMs / cluster if its groups
// of SMs are not multiples of the cluster's size.
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
