// Shared by all files of the CUDA backend: errors, the CUDA stream behind a Stream, and kernel
// launches.
#pragma once

#include <cuda_runtime.h>

#include <source_location>
#include <utility>

#include "core/error.h"
#include "core/stream.h"
#include "sm90.cuh"

namespace ultrascale {

// Throws std::runtime_error with CUDA's own words unless `status` is cudaSuccess.
void cuda_check(cudaError_t status, std::source_location at = std::source_location::current());

cudaStream_t cuda_stream(const Stream& stream);
inline cudaStream_t cuda_compute() { return cuda_stream(compute_stream()); }

void cuda_select_device();  // selects this rank's GPU; throws UserError if there is none
// Waits for the device, then returns the memory pool's unused memory to the driver.
void cuda_release_unused();
// Device memory that does not come from that pool, since peers map it: its bytes, how many of them
// tensors use now, and the most that they ever used (comm/nccl/peer_memory.cpp counts them).
struct MappedMemory {
    int64_t held = 0, used = 0, most_used = 0;
};
MappedMemory& mapped_memory();
int multiprocessors();       // of this rank's device
bool programmatic_launch();  // whether this rank's device has programmatic dependent launch
// Whether it has sm_90a's instructions (hopper.cuh) and the environment variable
// ULTRASCALE_NO_HOPPER is not set.
bool hopper();
// Copies `bytes` (a multiple of 4) to workspace memory on the device; `data` may be freed when it
// returns. A recording (core/recording.h) copies them once, so they must not change from replay to
// replay.
class Tensor;
Tensor constant_on_device(const void* data, int64_t bytes);
// The most dynamic shared memory that a block may request, in bytes: 227 KiB on Hopper, 163 on
// A100, 99 on GeForce.
int64_t shared_memory_per_block();

// DYNAMIC_SHARED(T, name): `name` points to the block's dynamic shared memory, 16-byte aligned.
#ifdef ULTRASCALE_SIMT
#define DYNAMIC_SHARED(T, name) T* const name = static_cast<T*>(::simt::dynamic_shared())
#else
#define DYNAMIC_SHARED(T, name) extern __shared__ __align__(16) T name[]
#endif

#if defined(__CUDACC__) || defined(ULTRASCALE_SIMT)
// LAUNCH(kernel, grid, block, shared_bytes)(arguments...) launches a kernel on the compute stream.
// Put a kernel with several template arguments in parentheses. (Without a GPU, simt.h runs the
// kernels.)
#define LAUNCH(kernel, grid, block, shared_bytes) \
    ::ultrascale::Launch(kernel, grid, block, shared_bytes)
// LAUNCH for a kernel whose blocks may start while the kernel before it ends (programmatic
// dependent launch; Hopper and later). It must call wait_for_kernel_before() in every block.
#define LAUNCH_EARLY(kernel, grid, block, shared_bytes) \
    ::ultrascale::Launch(kernel, grid, block, shared_bytes, programmatic_launch())

template <class... Parameters>
class Launch {
public:
    Launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
           bool early = false)
        : kernel_(kernel), grid_(grid), block_(block), shared_bytes_(shared_bytes), early_(early) {}
    template <class... Arguments>
    void operator()(Arguments&&... arguments) const {
        if (grid_.x == 0 || grid_.y == 0 || grid_.z == 0) return;  // nothing to do
        // With the kernel's static shared memory this may exceed 48 KiB, which must be requested.
        if (shared_bytes_ > 40 * 1024)
            cuda_check(cudaFuncSetAttribute(kernel_, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            int(shared_bytes_)));
        cudaLaunchAttribute early;
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
        const cudaLaunchConfig_t config = {grid_,          block_, shared_bytes_,
                                           cuda_compute(), &early, early_ ? 1u : 0u};
        cuda_check(cudaLaunchKernelEx(&config, kernel_,
                                      Parameters(std::forward<Arguments>(arguments))...));
    }

private:
    void (*kernel_)(Parameters...);
    dim3 grid_, block_;
    size_t shared_bytes_;
    bool early_;
};

// The two halves of LAUNCH_EARLY. The first kernel signals when the next one may start on free
// multiprocessors. The next kernel waits until everything that the first one writes is visible,
// before it reads any of it. Neither has an effect before Hopper.
__device__ inline void let_next_kernel_start() {
    SM90("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ inline void wait_for_kernel_before() { SM90("griddepcontrol.wait;" ::: "memory"); }
#endif

}  // namespace ultrascale
