// The memory of what is recorded (recording.cpp), for device.cpp. While the compute stream is
// recorded, nothing can be taken from its pool or given back to it in its order.
#pragma once

#include <cstdint>

namespace ultrascale {

bool is_recording();
struct RecordedMemory {
    int64_t held, most_used;  // bytes: taken from the device; the most in use at a time
};
RecordedMemory recorded_memory();
void* recorded_allocate(int64_t bytes);  // nullptr: no memory is left
// Returns false if nothing is recorded now and the memory is not a recording's.
bool recorded_free(void* data);

}  // namespace ultrascale
