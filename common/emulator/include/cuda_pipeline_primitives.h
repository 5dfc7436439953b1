// Stands in for CUDA's header where kernels run on the CPU: asynchronous copies that are complete
// at once.
#pragma once

#include "cuda_runtime.h"

template <size_t bytes>
struct alignas(bytes) CopiedBytes {
    unsigned char all[bytes];
};
inline void __pipeline_memcpy_async(void* shared, const void* global, size_t bytes) {
    // One load and one store of this width, like the instruction.
    const auto copy = [&]<size_t n>(std::integral_constant<size_t, n>) {
        *static_cast<CopiedBytes<n>*>(shared) = *static_cast<const CopiedBytes<n>*>(global);
    };
    if (bytes == 4) return copy(std::integral_constant<size_t, 4>());
    if (bytes == 8) return copy(std::integral_constant<size_t, 8>());
    if (bytes == 16) return copy(std::integral_constant<size_t, 16>());
    simt::fail("__pipeline_memcpy_async of another size than 4, 8 and 16 bytes");
}
inline void __pipeline_commit() {}
inline void __pipeline_wait_prior(size_t) {}
