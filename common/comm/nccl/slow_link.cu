// Simulated nodes on GPUs: after a call of NCCL, a kernel of one thread waits in the stream until
// the simulated time is over (mpi/slow_links.h).
#include "cuda/cuda_common.h"

namespace ultrascale {

namespace {

__device__ unsigned long long card_free_at =
    0;  // when this rank's network card will be free, in nanoseconds; several streams use it

__device__ unsigned long long now_nanoseconds() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__global__ void wait_kernel(unsigned long long nanoseconds) {
    unsigned long long free_at = atomicAdd(&card_free_at, 0), seen, end;
    do {  // reserves the card's next free time
        seen = free_at;
        end = max(seen, now_nanoseconds()) + nanoseconds;
        free_at = atomicCAS(&card_free_at, seen, end);
    } while (free_at != seen);
    while (now_nanoseconds() < end) __nanosleep(1000);
}

__global__ void sleep_kernel(unsigned long long nanoseconds) {
    const unsigned long long end = now_nanoseconds() + nanoseconds;
    while (now_nanoseconds() < end) __nanosleep(1000);
}

}  // namespace

void wait_in_stream(double seconds, cudaStream_t stream) {
    if (seconds <= 0) return;
    sleep_kernel<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(seconds * 1e9));
    cuda_check(cudaGetLastError());
}

void wait_for_slow_link(double seconds, cudaStream_t stream) {
    if (seconds <= 0) return;
    wait_kernel<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(seconds * 1e9));
    cuda_check(cudaGetLastError());
}

}  // namespace ultrascale
