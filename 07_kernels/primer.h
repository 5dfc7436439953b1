// The units and memories of a GPU, and how many of them a kernel can occupy.
#pragma once

#include "kernel.h"

namespace ultrascale::kernels {

// The resources of one multiprocessor (SM) and of the whole GPU: this GPU's or, if there is none,
// an H200's (CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", 9.0;
// the product's data sheet).
struct Hierarchy {
    std::string name = "H200 SXM";
    int multiprocessors = 132, warps = 64, blocks = 32, threads_per_block = 1024;
    int64_t registers = 65536;  // 4 bytes each
    int64_t shared = 228 << 10,
            shared_of_system = 1 << 10;    // bytes of an SM, and bytes reserved in each block
    int64_t shared_per_block = 227 << 10;  // bytes
    int64_t l2 = 50 << 20, memory = int64_t(141) * 1'000'000'000;  // bytes
    double memory_rate = 4.8e12;                                   // bytes/s, by the data sheet
};
Hierarchy this_gpu();

// How many blocks of one launch an SM can hold at once. Each resource allows a number; the smallest
// number counts.
struct Occupancy {
    int registers_per_thread = 0;  // 0: not known without nvcc's machine code
    int64_t shared_per_block = 0;  // bytes, static and dynamic
    int by_warps = 0, by_blocks = 0, by_registers = 0, by_shared = 0;
    int blocks = 0;
    double share = 0;  // the warps that it holds, divided by the most it can hold
    const char* limit = "";
};
Occupancy occupancy(const Hierarchy& gpu, const LaunchNote& launch);

void print_primer(const std::vector<std::pair<Kernel, std::vector<LaunchNote>>>& kernels);

}  // namespace ultrascale::kernels
