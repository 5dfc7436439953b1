// A CUDA event that destroys itself. Event (stream.cpp) and Timestamp (timestamp.cpp) hold one.
#pragma once

#include <sched.h>

#include "core/stream_failure.h"
#include "cuda_common.h"

namespace ultrascale {

// Like a stream, an event belongs to the current device. Every thread has its own current device,
// so the constructor selects it once per thread.
struct CudaEvent {
    cudaEvent_t event = nullptr;
    explicit CudaEvent(unsigned flags) {
        static thread_local const bool selected = (cuda_select_device(), true);
        (void)selected;
        cuda_check(cudaEventCreateWithFlags(&event, flags));
    }
    ~CudaEvent() { cudaEventDestroy(event); }  // may be called before the event is reached
    CudaEvent(const CudaEvent&) = delete;

    bool reached() const {
        cudaError_t status = cudaEventQuery(event);
        if (status != cudaErrorNotReady) cuda_check(status);
        return status == cudaSuccess;
    }
    // Polls instead of calling cudaEventSynchronize: if communication was abandoned, the event may
    // never be reached.
    void wait() const {
        while (!reached()) {
            check_not_abandoned();
            sched_yield();
        }
    }
};

}  // namespace ultrascale
