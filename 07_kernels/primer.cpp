#include "primer.h"

#include <fmt/format.h>

#include <algorithm>

namespace ultrascale::kernels {
namespace {

// The resources that the machine code uses. registers is 0 if nothing was compiled for a GPU.
struct Code {
    int registers;
    int64_t static_shared;
};
Code code_of([[maybe_unused]] const void* kernel) {
#ifdef ULTRASCALE_CUDA
    cudaFuncAttributes attributes;
    cuda_check(cudaFuncGetAttributes(&attributes, kernel));
    return {attributes.numRegs, int64_t(attributes.sharedSizeBytes)};
#else
    return {0, 0};
#endif
}

std::string plain(std::string name) {  // "(product<8, 8>)" -> "product<8, 8>"
    if (name.starts_with('(')) name = name.substr(1, name.size() - 2);
    return name;
}

}  // namespace

Hierarchy this_gpu() {
    Hierarchy gpu;
#ifdef ULTRASCALE_CUDA
    int device = 0;
    cudaDeviceProp p;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaGetDeviceProperties(&p, device));
    int clock = 0;  // kHz
    cuda_check(cudaDeviceGetAttribute(&clock, cudaDevAttrMemoryClockRate, device));
    gpu = {p.name,
           p.multiProcessorCount,
           p.maxThreadsPerMultiProcessor / 32,
           p.maxBlocksPerMultiProcessor,
           p.maxThreadsPerBlock,
           p.regsPerMultiprocessor,
           int64_t(p.sharedMemPerMultiprocessor),
           int64_t(p.reservedSharedMemPerBlock),
           int64_t(p.sharedMemPerBlockOptin),
           p.l2CacheSize,
           int64_t(p.totalGlobalMem),
           2.0 * clock * 1e3 * p.memoryBusWidth / 8};
#endif
    return gpu;
}

Occupancy occupancy(const Hierarchy& gpu, const LaunchNote& launch) {
    const Code code = code_of(launch.kernel);
    const int threads = int(launch.block.x * launch.block.y * launch.block.z),
              warps = (threads + 31) / 32;
    Occupancy o;
    o.registers_per_thread = code.registers;
    o.shared_per_block = code.static_shared + int64_t(launch.shared_bytes);
    o.by_warps = gpu.warps / warps;
    o.by_blocks = gpu.blocks;
    // Registers are allocated to warps in units of 256; each quarter of an SM has its own.
    const int64_t registers_per_warp = (int64_t(code.registers) * 32 + 255) / 256 * 256;
    o.by_registers =
        registers_per_warp ? int(gpu.registers / 4 / registers_per_warp * 4 / warps) : gpu.blocks;
    const int64_t shared = (o.shared_per_block + gpu.shared_of_system + 127) / 128 * 128;
    o.by_shared = o.shared_per_block ? int(gpu.shared / shared) : gpu.blocks;
    o.blocks = std::min({o.by_warps, o.by_blocks, o.by_registers, o.by_shared});
    o.share = double(o.blocks * warps) / gpu.warps;
    o.limit = o.blocks == o.by_warps                             ? "warps"
              : o.blocks == o.by_registers && registers_per_warp ? "registers"
              : o.blocks == o.by_shared && o.shared_per_block    ? "shared memory"
                                                                 : "blocks";
    return o;
}

void print_primer(const std::vector<std::pair<Kernel, std::vector<LaunchNote>>>& kernels) {
    const Hierarchy gpu = this_gpu();
#ifdef ULTRASCALE_CUDA
    fmt::print("{}\n", gpu.name);
#else
    fmt::print(
        "no GPU here, so these are an {}'s numbers; only nvcc knows a kernel's registers\n"
        "and __shared__ arrays\n",
        gpu.name);
#endif
    const auto line = [](const std::string& part, const std::string& what) {
        fmt::print("  {:<35}{}\n", part, what);
    };
    line("grid", "threads come in blocks, and execute in warps of 32");
    line(fmt::format("{:>4} SMs", gpu.multiprocessors),
         fmt::format("a block runs on one of them, with up to {} threads", gpu.threads_per_block));
    line(fmt::format("     each SM: {:3} warps, {} blocks", gpu.warps, gpu.blocks),
         "at once; 4 schedulers, each one instruction a clock");
    line(fmt::format("     {:6} registers of 4 bytes", gpu.registers),
         fmt::format("{} KiB, private to a thread: {} at full occupancy, at most 255",
                     gpu.registers * 4 >> 10, gpu.registers / (gpu.warps * 32)));
    line(fmt::format("     {:6} KiB shared memory", gpu.shared >> 10),
         fmt::format("a block's own, at most {} KiB; 32 banks of 4 bytes a clock",
                     gpu.shared_per_block >> 10));
    line(fmt::format("{:>4} MiB L2", gpu.l2 >> 20), "shared by all SMs");
    line(fmt::format("{:>4.0f} GB memory", double(gpu.memory) / 1e9),
         fmt::format("{:.2f} TB/s by the data sheet\n", gpu.memory_rate / 1e12));

    fmt::print(
        "occupancy: how many blocks each resource lets an SM hold at once; the smallest counts,\n"
        "{} at most\n",
        gpu.blocks);
    constexpr const char* row = "  {:<27} {:>7} {:>4} {:>8} | {:>5} {:>4} {:>6} | {:>6} {:>5} {}\n";
    fmt::print("  {:<27} {:>21} | {:<17} | {}\n", "", "of a block", "blocks allowed by",
               "an SM holds");
    fmt::print(fmt::runtime(row), "kernel", "threads", "regs", "shared B", "warps", "regs",
               "shared", "blocks", "warps", "limit");
    for (const auto& [kernel, launches] : kernels) {
        const bool several = launches.size() > 1;
        if (several) fmt::print("  {}\n", kernel.name);
        for (const LaunchNote& launch : launches) {
            const Occupancy o = occupancy(gpu, launch);
            const std::string name = several ? "  " + plain(launch.name) : kernel.name;
            const bool compiled = o.registers_per_thread > 0;
            fmt::print(fmt::runtime(row), name.substr(0, 27),
                       launch.block.x * launch.block.y * launch.block.z,
                       compiled ? std::to_string(o.registers_per_thread) : "-", o.shared_per_block,
                       o.by_warps, compiled ? std::to_string(o.by_registers) : "-", o.by_shared,
                       o.blocks, fmt::format("{:.0f} %", 100 * o.share), o.limit);
        }
    }
}

}  // namespace ultrascale::kernels
