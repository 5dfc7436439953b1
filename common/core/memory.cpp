#include "memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "error.h"
#include "trace.h"

namespace ultrascale {
namespace {

struct Tracker {
    std::mutex mutex;
    MemoryByCategory now{}, peak{}, at_peak{};
    int64_t peak_total = 0, limit = -1;
    bool recording = false;
    std::vector<MemoryPoint> timeline;
    MemoryObserver observer{};

    void add(Memory category, int64_t bytes) {
        now[int(category)] += bytes;
        peak[int(category)] = std::max(peak[int(category)], now[int(category)]);
        if (int64_t sum = total(now); sum > peak_total) {
            peak_total = sum;
            at_peak = now;
        }
        if (recording) timeline.push_back({now_seconds(), now});
    }
};

// Never destroyed: tensors of static lifetime may be freed as late as program exit.
Tracker& tracker() {
    static Tracker* t = new Tracker;
    return *t;
}

int64_t padded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

std::string table(const MemoryByCategory& bytes) {
    std::string text;
    for (int c = 0; c < memory_categories; ++c)
        if (bytes[c] > 0)
            text += fmt::format("{}{} {}", text.empty() ? "" : ", ", memory_names[c],
                                format_bytes(double(bytes[c])));
    return text.empty() ? "nothing" : text;
}

}  // namespace

int64_t total(const MemoryByCategory& bytes) {
    int64_t sum = 0;
    for (int c = 0; c < memory_categories; ++c)
        if (!is_on_host(Memory(c))) sum += bytes[size_t(c)];
    return sum;
}

MemoryByCategory memory_now() {
    std::lock_guard lock(tracker().mutex);
    return tracker().now;
}

MemoryByCategory memory_peak_by_category() {
    std::lock_guard lock(tracker().mutex);
    return tracker().peak;
}

MemoryByCategory memory_at_peak() {
    std::lock_guard lock(tracker().mutex);
    return tracker().at_peak;
}

void memory_reset_peak() {
    Tracker& t = tracker();
    std::lock_guard lock(t.mutex);
    t.peak = t.at_peak = t.now;
    t.peak_total = total(t.now);
}

void memory_timeline_record(bool on) {
    std::lock_guard lock(tracker().mutex);
    tracker().recording = on;
}

const std::vector<MemoryPoint>& memory_timeline() { return tracker().timeline; }

UncountedMemory::UncountedMemory() {
    Tracker& t = tracker();
    std::lock_guard lock(t.mutex);
    peak_ = t.peak, at_peak_ = t.at_peak, peak_total_ = t.peak_total;
    recording_ = std::exchange(t.recording, false);
}

UncountedMemory::~UncountedMemory() {
    Tracker& t = tracker();
    std::lock_guard lock(t.mutex);
    t.peak = peak_, t.at_peak = at_peak_, t.peak_total = peak_total_;
    for (int c = 0; c < memory_categories; ++c)
        t.add(Memory(c), 0);  // what is still held counts from now on
    t.recording = recording_;
}

void memory_set_limit(int64_t bytes) {
    std::lock_guard lock(tracker().mutex);
    tracker().limit = bytes;
}

int64_t memory_limit() {
    std::lock_guard lock(tracker().mutex);
    if (tracker().limit < 0) tracker().limit = device_memory_bytes();
    return tracker().limit;
}

std::string format_count(int64_t count, const char* thing) {
    const char* plural = std::string_view(thing).ends_with("ch") ? "es" : "s";
    return fmt::format("{} {}{}", count, thing, count == 1 ? "" : plural);
}

std::string format_bytes(double bytes) {
    const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    while (std::abs(bytes) >= 1024 && unit < 5) bytes /= 1024, ++unit;
    return unit == 0 ? fmt::format("{:.0f} B", bytes)
                     : fmt::format("{:.{}f} {}", bytes, bytes < 10 ? 2 : 1, units[unit]);
}

void memory_observe(const MemoryObserver& observer) {
    std::lock_guard lock(tracker().mutex);
    tracker().observer = observer;
}

void* memory_allocate(int64_t bytes, Memory category, Allocator* from) {
    int64_t limit = memory_limit();
    Tracker& t = tracker();
    std::lock_guard lock(t.mutex);
    const int64_t taken = std::max<int64_t>(padded(bytes), 256);
    const bool fits = total(t.now) + bytes <= limit;
    void* data = is_on_host(category) ? host_allocate(taken)
                 : !fits              ? nullptr
                 : from               ? from->allocate(taken)
                                      : device_allocate(taken);
    if (!data && is_on_host(category))
        throw OutOfMemory(fmt::format(
            "out of memory on the host: no {} more for {}; held there: {}",
            format_bytes(double(bytes)), memory_names[int(category)],
            format_bytes(double(t.now[int(Memory::host)] + t.now[int(Memory::checkpoint)]))));
    if (!data)
        throw OutOfMemory(fmt::format("out of memory: {} more for {} do not fit in {}; held: {}",
                                      format_bytes(double(bytes)), memory_names[int(category)],
                                      format_bytes(double(limit)), table(t.now)));
    t.add(category, bytes);
    if (t.observer.allocated) t.observer.allocated(data, bytes);
    return data;
}

void memory_free(void* data, int64_t bytes, Memory category, Allocator* to) {
    Tracker& t = tracker();
    std::lock_guard lock(t.mutex);
    t.add(category, -bytes);
    if (t.observer.freed) t.observer.freed(data);
    if (to) return to->free(data);
    is_on_host(category) ? host_free(data) : device_free(data);
}

}  // namespace ultrascale
