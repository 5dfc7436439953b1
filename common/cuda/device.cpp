// The GPU as a device: which GPU a rank uses, its memory, and copies to and from the host.
//
// Tensors come from CUDA's stream-ordered pool, and every allocation and every free is queued on
// the compute stream. So later work of that stream can reuse a freed block at once, without
// waiting. Nothing is returned to the driver while the program runs (except to make room for memory
// that peers map: peer_memory.h). No reuse makes one stream wait for another: a Work owns the
// tensors that another stream uses until the compute stream has queued a wait for it (comm.h).
#include "core/device.h"

#include <cuda_runtime.h>
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "comm/comm.h"
#include "core/memory.h"
#include "core/ops.h"
#include "cuda_common.h"
#include "recording.h"

namespace ultrascale {

void cuda_check(cudaError_t status, std::source_location at) {
    if (status == cudaSuccess) return;
    const std::string says =
        fmt::format("{}:{}: CUDA: {}", at.file_name(), at.line(), cudaGetErrorString(status));
    if (status == cudaErrorNvlinkUncorrectable) throw PeerError(says);
    throw std::runtime_error(says);
}

namespace {

// The number of this machine's GPUs, without a call of CUDA; 0 if they have no files in /dev.
int gpu_files() {
    int count = 0;
    std::error_code unreadable;
    for (const auto& file : std::filesystem::directory_iterator("/dev", unreadable)) {
        const std::string name = file.path().filename();
        count += name.size() > 6 && name.starts_with("nvidia") &&
                 name.find_first_not_of("0123456789", 6) == std::string::npos;
    }
    return count;
}

// A process' streams share a number of the GPU's queues: 8 by default. Ranks with a GPU each take
// 32, because a stream that waits for another rank must not hold up the others. A rank that is
// alone, or shares a GPU, keeps the default: 32 queues take half a second longer to create, and the
// driver creates the queues of one process after another (01_data_parallel/MEASURED.md). CUDA reads
// the variable at its first call, which may be MPI's. So it is set before main(), when only the
// launcher's variables tell how many ranks there are.
[[maybe_unused]] const bool many_queues = [] {
    if (!std::getenv("PMI_RANK") && !std::getenv("PMIX_RANK")) return false;  // alone
    const char* on_this_node = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");     // Open MPI
    if (!on_this_node) on_this_node = std::getenv("MPI_LOCALNRANKS");         // MPICH
    const int gpus = on_this_node ? gpu_files() : 0;
    if (gpus > 0 && std::atoi(on_this_node) > gpus) return false;  // they share
    return setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0) == 0;
}();

int device_count() {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

const cudaDeviceProp& properties() {
    static const cudaDeviceProp properties = [] {
        cudaDeviceProp p;
        int device = 0;
        cuda_check(cudaGetDevice(&device));
        cuda_check(cudaGetDeviceProperties(&p, device));
        return p;
    }();
    return properties;
}

// The pool from which cudaMallocAsync allocates; it keeps freed memory.
cudaMemPool_t pool() {
    static const cudaMemPool_t pool = [] {
        int device = 0;
        cudaMemPool_t p;
        cuda_check(cudaGetDevice(&device));
        cuda_check(cudaDeviceGetDefaultMemPool(&p, device));
        uint64_t all = UINT64_MAX;
        cuda_check(cudaMemPoolSetAttribute(p, cudaMemPoolAttrReleaseThreshold, &all));
        int no = 0;  // never let one stream's allocation wait for another stream's free
        cuda_check(cudaMemPoolSetAttribute(p, cudaMemPoolReuseAllowInternalDependencies, &no));
        return p;
    }();
    return pool;
}

// Pinned host memory through which copies to the device pass. So the caller may reuse its buffer
// when the call returns, and the host does not wait for the work queued on the compute stream. Two
// halves alternate; a half is refilled only when the copies out of it have run.
class Staging {
public:
    Staging() {
        cuda_check(
            cudaHostAlloc(reinterpret_cast<void**>(&data_), 2 * half_bytes, cudaHostAllocDefault));
        for (cudaEvent_t& event : read_)
            cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    }
    void copy(char* device, const char* host, int64_t bytes) {
        while (bytes > 0) {
            if (used_ == half_bytes) {
                cuda_check(cudaEventRecord(read_[half_], cuda_compute()));
                half_ = 1 - half_, used_ = 0;
                cuda_check(cudaEventSynchronize(read_[half_]));
            }
            const int64_t piece = std::min(bytes, half_bytes - used_);
            char* staged = data_ + half_ * half_bytes + used_;
            std::memcpy(staged, host, size_t(piece));
            cuda_check(
                cudaMemcpyAsync(device, staged, size_t(piece), cudaMemcpyDefault, cuda_compute()));
            used_ += piece, host += piece, device += piece, bytes -= piece;
        }
    }

private:
    static constexpr int64_t half_bytes = 8 << 20;
    char* data_ = nullptr;
    std::array<cudaEvent_t, 2> read_{};
    int half_ = 0;
    int64_t used_ = 0;
};

}  // namespace

void cuda_select_device() {
    const int count = device_count();
    if (count == 0)
        user_error(
            "no GPU here: this program was built with BACKEND=cuda (for the CPU: make "
            "BACKEND=cpu)");
    cuda_check(cudaSetDevice(rank_on_this_node() % count));
}

int multiprocessors() { return properties().multiProcessorCount; }
bool programmatic_launch() { return properties().major >= 9; }
bool hopper() { return properties().major == 9 && !std::getenv("ULTRASCALE_NO_HOPPER"); }
int64_t shared_memory_per_block() { return int64_t(properties().sharedMemPerBlockOptin); }

void* device_allocate(int64_t bytes) {
    void* data = nullptr;
    const cudaStream_t stream = cuda_compute();  // selects the device
    if (is_recording()) return recorded_allocate(bytes);
    pool();
    if (cudaMallocAsync(&data, size_t(bytes), stream) == cudaSuccess) return data;
    cudaGetLastError();  // the null pointer reports out of memory
    return nullptr;
}

void device_free(void* data) {
    if (data && !recorded_free(data))
        cudaFreeAsync(data, cuda_compute());  // fails only at exit, when CUDA is already gone
}

void cuda_release_unused() {
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaMemPoolTrimTo(pool(), 0));
}

MappedMemory& mapped_memory() {
    static MappedMemory memory;
    return memory;
}

void* host_allocate(int64_t bytes) {
    void* data = nullptr;
    cuda_compute();  // selects the device
    if (cudaHostAlloc(&data, size_t(bytes), cudaHostAllocDefault) == cudaSuccess) return data;
    cudaGetLastError();  // the null pointer reports out of memory
    return nullptr;
}

void host_free(void* data) {
    if (data) cudaFreeHost(data);  // fails only at exit, when CUDA is already gone
}

int64_t device_memory_bytes() {
    compute_stream();
    size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total));
    const int sharing = std::max(1, (ranks_on_this_node() + device_count() - 1) / device_count());
    return int64_t(total) / sharing;
}

bool device_is_gpu() { return true; }

DeviceOverhead device_overhead() {
    compute_stream().synchronize();
    size_t free = 0, total = 0;
    cuda_check(cudaMemGetInfo(&free, &total));
    uint64_t reserved = 0, used = 0;
    cuda_check(cudaMemPoolGetAttribute(pool(), cudaMemPoolAttrReservedMemCurrent, &reserved));
    cuda_check(cudaMemPoolGetAttribute(pool(), cudaMemPoolAttrUsedMemHigh, &used));
    const RecordedMemory recorded = recorded_memory();
    reserved += uint64_t(recorded.held), used += uint64_t(recorded.most_used);
    const MappedMemory& mapped = mapped_memory();
    return {int64_t(total - free) - int64_t(reserved) - mapped.held,
            int64_t(reserved) - int64_t(used) + mapped.held - mapped.most_used};
}

void device_copy_from_host(void* device, const void* host, int64_t bytes) {
    check(!is_recording(), "a copy from the host cannot be recorded");
    static Staging& staging = *new Staging;
    staging.copy(static_cast<char*>(device), static_cast<const char*>(host), bytes);
}

void device_copy_to_host(void* host, const void* device, int64_t bytes) {
    check(!is_recording(), "a copy to the host cannot be recorded");
    if (bytes > 0)
        cuda_check(cudaMemcpyAsync(host, device, size_t(bytes), cudaMemcpyDefault, cuda_compute()));
    compute_stream().synchronize();
}

void device_copy_to_host(void* host, const void* device, int64_t bytes, const Event& after) {
    static Stream& reads = *new Stream("reads");  // lives as long as the process
    reads.wait(after);
    device_copy_async(host, device, bytes, reads);
    reads.synchronize();
}

void device_zero(void* device, int64_t bytes) {
    if (bytes > 0) cuda_check(cudaMemsetAsync(device, 0, size_t(bytes), cuda_compute()));
}

void device_copy_async(void* to, const void* from, int64_t bytes, Stream& stream) {
    cuda_check(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDefault, cuda_stream(stream)));
}

std::string device_description() {
    compute_stream();
    return fmt::format("{}, {} GPU{} on this machine", properties().name, device_count(),
                       device_count() == 1 ? "" : "s");
}

void device_use_threads(int) {}

void device_range_begin(std::string_view name) {
    char terminated[256];  // as NVTX requires, without an allocation
    terminated[name.copy(terminated, sizeof terminated - 1)] = 0;
    nvtxRangePushA(terminated);
}
void device_range_end() { nvtxRangePop(); }

DevicePeak device_peak(DType dtype) {
    compute_stream();
    struct Known {
        const char* name;
        double bf16, fp32;
    };
    // Dense FLOP/s from NVIDIA's datasheets: bf16 on tensor cores, fp32 without TF32.
    const Known known[] = {{"H200", 989.5e12, 66.9e12},    {"H100 PCIe", 756.5e12, 51.2e12},
                           {"H100", 989.5e12, 66.9e12},    {"B200", 2250e12, 75e12},
                           {"A100", 312e12, 19.5e12},      {"L40S", 362e12, 91.6e12},
                           {"RTX 4090", 165.2e12, 82.6e12}};
    for (const Known& k : known)
        if (std::string(properties().name).find(k.name) != std::string::npos)
            return {dtype == DType::fp32 ? k.fp32 : k.bf16, "datasheet"};
    return {ops::measure_matmul_rate(dtype, 8192), "cuBLAS, measured now"};
}

}  // namespace ultrascale
