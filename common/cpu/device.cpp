// The CPU as a device: its memory and its threads.
#include "core/device.h"

#include <cblas.h>
#include <malloc.h>
#include <unistd.h>

#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>

#include "comm/comm.h"
#include "core/memory.h"
#include "core/ops.h"
#include "core/stream.h"
#include "core/threads.h"

namespace ultrascale {

constexpr size_t alignment = 256;

#ifdef __SANITIZE_ADDRESS__  // it sees a write beyond the data only if the block ends there
static void* aligned_block(size_t bytes) { return std::aligned_alloc(alignment, bytes); }
static void free_block(void* data) { std::free(data); }
#else
// The data is aligned inside a larger block that is kept whole; the word before the data says where
// the block begins. (aligned_alloc returns the memory around the data. A freed block is then too
// small for an aligned block of the same size, and remains as a hole in the heap.)
static void* aligned_block(size_t bytes) {
    void* block = std::malloc(bytes + alignment);
    if (!block) return nullptr;
    // malloc aligns to 16 bytes, so at least 16 bytes are left before the data.
    void** data = reinterpret_cast<void**>((uintptr_t(block) / alignment + 1) * alignment);
    data[-1] = block;
    return data;
}
static void free_block(void* data) {
    if (data) std::free(static_cast<void**>(data)[-1]);
}
#endif

void* device_allocate(int64_t bytes) {
    // A step frees and allocates the same sizes again and again. By default glibc returns large
    // blocks to the system, and every step would cost a page fault for each 4 KiB. So we disable
    // separate mappings for large blocks, and the heap never shrinks.
    static const bool kept = mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, INT_MAX) == 1;
    (void)kept;
    return aligned_block(size_t(bytes));
}

void device_free(void* data) { free_block(data); }

void* host_allocate(int64_t bytes) { return device_allocate(bytes); }
void host_free(void* data) { device_free(data); }

int64_t device_memory_bytes() {
    return int64_t(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE) / ranks_on_this_node();
}

// An empty tensor may have a null pointer, which memcpy does not accept.
void device_copy_from_host(void* device, const void* host, int64_t bytes) {
    if (bytes > 0) std::memcpy(device, host, size_t(bytes));
}
void device_copy_to_host(void* host, const void* device, int64_t bytes) {
    if (bytes > 0) std::memcpy(host, device, size_t(bytes));
}
void device_copy_to_host(void* host, const void* device, int64_t bytes, const Event& after) {
    after.synchronize();
    device_copy_to_host(host, device, bytes);
}
void device_zero(void* device, int64_t bytes) { std::memset(device, 0, size_t(bytes)); }
void device_copy_async(void* to, const void* from, int64_t bytes, Stream& stream) {
    stream.submit([=] { std::memcpy(to, from, size_t(bytes)); });
}

std::string device_description() {
    std::string model = "unknown processor";
    std::ifstream info("/proc/cpuinfo");
    for (std::string line; std::getline(info, line);)
        if (line.starts_with("model name")) {
            model = line.substr(line.find(':') + 2);
            break;
        }
    return fmt::format("CPU, {} thread{} ({})", threads(), threads() == 1 ? "" : "s", model);
}

bool device_is_gpu() { return false; }

DeviceOverhead device_overhead() { return {0, 0}; }

void device_use_threads(int threads) { openblas_set_num_threads(threads); }

void device_range_begin(std::string_view) {}
void device_range_end() {}

DevicePeak device_peak(DType) {
    return {ops::measure_matmul_rate(DType::fp32), "OpenBLAS sgemm, measured now"};
}

}  // namespace ultrascale
