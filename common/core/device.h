// The device on which this rank computes, in words and numbers. Each backend implements these
// functions.
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

// GPU memory that belongs to no tensor, in bytes, divided as in the playbook. context: the memory
// that CUDA, its kernels, cuBLAS and NCCL occupy before any tensor exists (for all processes on
// this GPU together). fragmentation: what the allocator holds beyond the tensors' peak. Both are 0
// on the CPU.
struct DeviceOverhead {
    int64_t context, fragmentation;
};
DeviceOverhead device_overhead();

// Tells libraries that manage their own threads (OpenBLAS) how many threads OpenMP uses.
void device_use_threads(int threads);

// A named range for profilers that watch the process (NVTX on CUDA; nothing on the CPU).
void device_range_begin(std::string_view name);
void device_range_end();

}  // namespace ultrascale
