// Measures steps and calls, for --compare and for demos.
#pragma once

#include <functional>

#include "train/run.h"

namespace ultrascale {

// For --compare: repeats a step several times at learning rate 0 on the first samples, and measures
// its time, communication and memory.
struct Measured {
    double step_seconds;         // the slowest rank's median
    CommunicationCounts counts;  // this rank's, of all steps, without the barriers between them
    int64_t steps;
    double communication_seconds, exposed_seconds;  // per step, of the slowest rank
    double sent_bytes;                              // per step, of this rank
};
// `settle` waits for communication that a step leaves unfinished. Throws UserError if a loss or a
// norm was not finite on any rank. Afterwards memory_peak_by_category() and the trace's spans, if
// recorded, cover the measured steps only.
Measured measure(const DataLoader& loader, const DataSlice& slice, int64_t sequences, int64_t steps,
                 const std::function<void(Step&)>& step, const std::function<void()>& settle = {});

// The seconds of a call that all ranks make: the slowest rank's median. Calls are queued in
// batches, and the host waits for the device at the end of each batch, so that a GPU's time
// contains no wait for the host.
double measure_call(const Communicator& ranks, const std::function<void()>& call);

}  // namespace ultrascale
