// Where every byte belongs.
//
// The playbook's "memory anatomy": a training step holds parameters, gradients, optimizer states
// and activations. We add two occupants that every real system has: communication buffers and
// workspace (scratch of an operation, the batch). Of these the device's memory consists; what was
// moved to the host's (offloading) is counted beside them. Each Tensor names its category when it
// is made; the counters below follow allocations in the order in which the host program makes them,
// so the same program gives the same peak on a CPU and on a GPU, run after run.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace ultrascale {

enum class Memory { parameter, gradient, optimizer, activation, communication, workspace, host };
inline constexpr int memory_categories = 7;
inline constexpr std::array<const char*, memory_categories> memory_names = {
    "parameters", "gradients", "optimizer", "activations", "communication", "workspace", "host"};

using MemoryByCategory = std::array<int64_t, memory_categories>;  // bytes, indexed by Memory
int64_t total(const MemoryByCategory& bytes);  // on the device: all but Memory::host

// A point of the timeline: what was held, in bytes, at `seconds` since the program's start.
struct MemoryPoint {
    double seconds;
    MemoryByCategory bytes;
};

// Bytes held now, and the most that was held since reset_peak(): each category's own peak, and the
// categories at the moment when their sum was highest.
MemoryByCategory memory_now();
MemoryByCategory memory_peak_by_category();
MemoryByCategory memory_at_peak();
void memory_reset_peak();

// The timeline records a point at every allocation and every free while it is on (trace.h and the
// terminal chart use it).
void memory_timeline_record(bool on);
const std::vector<MemoryPoint>& memory_timeline();

// What is allocated and freed while it lives leaves no trace: the timeline pauses, and afterwards
// the peaks are what they were.
class MemoryAside {
public:
    MemoryAside();
    ~MemoryAside();
    MemoryAside(const MemoryAside&) = delete;

private:
    MemoryByCategory peak_, at_peak_;
    int64_t peak_total_;
    bool recording_;
};

// How much this process may hold on the device, in bytes; an allocation past it throws OutOfMemory
// with the table of what is held. Default: the device's memory (on the CPU: the machine's, divided
// by the ranks that share it).
void memory_set_limit(int64_t bytes);
int64_t memory_limit();

// "12.3 MiB", as every table prints bytes.
std::string format_bytes(double bytes);
// "1 rank", "4 ranks".
std::string format_count(int64_t count, const char* thing);

// Where device memory comes from that is not the device's own allocator's (comm.h: symmetric
// memory). nullptr when there is none left.
struct Allocator {
    virtual ~Allocator() = default;
    virtual void* allocate(int64_t bytes) = 0;
    virtual void free(void* data) = 0;
};

// Memory for a tensor: 256-byte aligned, counted under `category`, uninitialised; from the device
// unless an allocator is given. Throws OutOfMemory. Only tensor.h calls these.
void* memory_allocate(int64_t bytes, Memory category, Allocator* from = nullptr);
void memory_free(void* data, int64_t bytes, Memory category, Allocator* to = nullptr);

// For a tool that must know where allocations lie (simt/access.cpp): called after each one and
// before each free, one call at a time. Set it before the first allocation.
struct MemoryObserver {
    void (*allocated)(const void* data, int64_t bytes);
    void (*freed)(const void* data);
};
void memory_observe(const MemoryObserver& observer);

// What the backend provides: raw memory of the device (nullptr when there is none left) and how
// much there is.
void* device_allocate(int64_t bytes);
void device_free(void* data);
// Memory of the host that the device can copy from and to while both go on (CUDA: page-locked).
// Nullptr when there is none left.
void* host_allocate(int64_t bytes);
void host_free(void* data);
int64_t device_memory_bytes();

}  // namespace ultrascale
