// The device this rank computes on, in words and numbers. Each backend answers.
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

// The playbook's two extra occupants of a GPU, in bytes: what CUDA, its kernels, cuBLAS and NCCL
// take before any tensor exists (of all processes on this GPU), and what the allocator holds beyond
// the most that tensors ever used. 0 on the CPU.
struct DeviceOverhead {
    int64_t context, fragmentation;
};
DeviceOverhead device_overhead();

// The host's threads: OpenMP's number has been set, libraries that keep a number of their own take
// it now (OpenBLAS).
void device_use_threads(int threads);

// A named range for profilers that watch the process (NVTX on CUDA; nothing on the CPU).
void device_range_begin(std::string_view name);
void device_range_end();

}  // namespace ultrascale
