// A CUDA event and its end: what an Event of stream.cpp and a Timestamp of timestamp.cpp hold.
#pragma once

#include <sched.h>

#include "comm/mpi/comm_mpi.h"
#include "cuda_common.h"

namespace ultrascale {

// A CUDA event, which belongs to the current device, as streams do; every thread has a current
// device of its own.
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
    // Not cudaEventSynchronize: where communication was given up, the event may never be reached.
    void wait() const {
        while (!reached()) {
            check_not_abandoned();
            sched_yield();
        }
    }
};

}  // namespace ultrascale
