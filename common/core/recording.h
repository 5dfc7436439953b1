// A recording of what the compute stream is asked to do, which the device then repeats at a single
// launch: a CUDA graph. Launching operations one by one takes the host longer than small ones take
// the device (00_single_gpu/LAUNCHES.md).
//
// What is recorded are operations with the addresses and numbers that they were given. So a replay
// computes from whatever its tensors contain by then, but with the same numbers (a learning rate,
// say), and the host's own work between the operations is not repeated. Tensors that are created
// while a recording is made have memory that stays reserved for replays. Between begin() and end()
// nothing runs, so the host must not wait for the device, or copy from and to it. A tensor from
// before that is freed there keeps its memory and its contents for the replays.
#pragma once

#include <cstdint>
#include <memory>

namespace ultrascale {

class Recording {
public:
    virtual ~Recording() = default;        // ends an unfinished recording
    virtual void begin() = 0;              // waits for the device
    virtual void end() = 0;                // throws if something cannot be recorded
    virtual void replay() = 0;             // queues it on the compute stream
    virtual int64_t launches() const = 0;  // operations of the device in it
};

// An empty recording; nullptr where operations are not launched (on the CPU).
std::unique_ptr<Recording> make_recording();

}  // namespace ultrascale
