// Memory accounting: every byte belongs to a category.
//
// The playbook's "memory anatomy": a training step holds parameters, gradients, optimizer states
// and activations. We add two categories that every real system has: communication buffers and
// workspace (an operation's scratch, the batch). Together these make up the device's memory. Two
// more are in the host's memory, and counted separately: data offloaded there, and the copies from
// which a checkpoint is written beside the training. Each Tensor names its category when it is
// created. The counters below follow allocations in the order in which the host program makes them,
// so the same program has the same peak on a CPU and on a GPU, in every run.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ultrascale {

enum class Memory {
    parameter,
    gradient,
    optimizer,
    activation,
    communication,
    workspace,
    host,
    checkpoint
};
inline constexpr int memory_categories = 8;
inline constexpr std::array<const char*, memory_categories> memory_names = {
    "parameters",    "gradients", "optimizer", "activations",
    "communication", "workspace", "host",      "checkpoint"};
inline constexpr bool is_on_host(Memory category) { return category >= Memory::host; }

using MemoryByCategory = std::array<int64_t, memory_categories>;  // bytes, indexed by Memory
int64_t total(const MemoryByCategory& bytes);  // on the device: without what is_on_host()

// A point of the timeline: the bytes held `seconds` after the program's start.
struct MemoryPoint {
    double seconds;
    MemoryByCategory bytes;
};

// Bytes held now, and the peaks since memory_reset_peak(): each category's own peak, and all
// categories at the moment when their sum was highest.
MemoryByCategory memory_now();
MemoryByCategory memory_peak_by_category();
MemoryByCategory memory_at_peak();
void memory_reset_peak();

// While on, the timeline records a point at every allocation and every free (for the trace and the
// terminal chart).
void memory_timeline_record(bool on);
const std::vector<MemoryPoint>& memory_timeline();

// Hides all allocations and frees during its lifetime: the timeline pauses, and afterwards the
// peaks are restored.
class UncountedMemory {
public:
    UncountedMemory();
    ~UncountedMemory();
    UncountedMemory(const UncountedMemory&) = delete;

private:
    MemoryByCategory peak_, at_peak_;
    int64_t peak_total_;
    bool recording_;
};

// Limits the bytes that this process may hold on the device. An allocation beyond the limit throws
// OutOfMemory with the table of the memory in use. Default: the device's memory (on the CPU: the
// machine's, divided by the ranks that share it).
void memory_set_limit(int64_t bytes);
int64_t memory_limit();

// "12.3 MiB", the format of bytes in every table.
std::string format_bytes(double bytes);
// "1 rank", "4 ranks", "2 micro-batches".
std::string format_count(int64_t count, const char* thing);

// A source of device memory other than the device's own allocator (comm.h: symmetric memory).
// allocate() returns nullptr when no memory is left.
struct Allocator {
    virtual ~Allocator() = default;
    virtual void* allocate(int64_t bytes) = 0;
    virtual void free(void* data) = 0;
};

// Memory for a tensor: 256-byte aligned, uninitialised, counted under `category`; from the device
// unless an allocator is given. Throws OutOfMemory. Only tensor.h calls these.
void* memory_allocate(int64_t bytes, Memory category, Allocator* from = nullptr);
void memory_free(void* data, int64_t bytes, Memory category, Allocator* to = nullptr);

// For a tool that must know where allocations lie (emulator/access.cpp): called after each
// allocation and before each free, never concurrently. Set it before the first allocation.
struct MemoryObserver {
    void (*allocated)(const void* data, int64_t bytes);
    void (*freed)(const void* data);
};
void memory_observe(const MemoryObserver& observer);

// Implemented by the backend: raw device memory (nullptr when none is left) and its total size.
void* device_allocate(int64_t bytes);
void device_free(void* data);
// Host memory that the device can copy from and to asynchronously (CUDA: page-locked). nullptr when
// none is left.
void* host_allocate(int64_t bytes);
void host_free(void* data);
int64_t device_memory_bytes();

}  // namespace ultrascale
