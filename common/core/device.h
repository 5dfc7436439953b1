// The device this rank computes on, described in words and numbers. Each backend implements these.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "tensor.h"

namespace ultrascale {

std::string device_description();  // "CPU, 2 threads (AMD EPYC)"

bool device_is_gpu();

struct DevicePeak {
    double flops;        // dense FLOP/s for this dtype
    std::string source;  // "measured sgemm", "datasheet"
};
DevicePeak device_peak(DType dtype);

// GPU memory that no tensor accounts for, in bytes, after the playbook. context: what CUDA, its
// kernels, cuBLAS and NCCL take before any tensor exists (all processes on this GPU together).
// fragmentation: what the allocator holds beyond the peak of the tensors. 0 on the CPU.
struct DeviceOverhead {
    int64_t context, fragmentation;
};
DeviceOverhead device_overhead();

// Passes the number of host threads, already set for OpenMP, to libraries with a thread count of
// their own (OpenBLAS).
void device_use_threads(int threads);

// A named range for profilers that watch the process (NVTX on CUDA; nothing on the CPU).
void device_range_begin(std::string_view name);
void device_range_end();

}  // namespace ultrascale
