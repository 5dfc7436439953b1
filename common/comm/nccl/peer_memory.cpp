#include "peer_memory.h"

#include <cuda.h>

#include <algorithm>
#include <array>
#include <fstream>

namespace ultrascale {

namespace {

// Smaller allocations share a page of the device, and a handle stands for the whole page.
constexpr int64_t grain = 2 << 20;

struct Export {
    bool ok;
    // the machine's boot id: a handle is meaningless on another machine
    std::array<char, 36> machine;
    cudaIpcMemHandle_t handle;
};

std::array<char, 36> boot_id() {
    std::array<char, 36> id{};
    std::ifstream("/proc/sys/kernel/random/boot_id").read(id.data(), id.size());
    return id;
}

// Allocates device memory. If none is left, it first releases the unused memory in the tensors'
// pool.
char* allocate_exportable(int64_t bytes) {
    void* data = nullptr;
    if (cudaMalloc(&data, size_t(bytes)) == cudaSuccess) return static_cast<char*>(data);
    cudaGetLastError();
    cuda_release_unused();
    if (cudaMalloc(&data, size_t(bytes)) == cudaSuccess) return static_cast<char*>(data);
    cudaGetLastError();
    return nullptr;
}

using BatchMemOp = CUresult (*)(CUstream, unsigned, CUstreamBatchMemOpParams*, unsigned);
BatchMemOp batch_mem_op() {
    static const BatchMemOp function = [] {
        void* f = nullptr;
        cudaDriverEntryPointQueryResult found;
        cuda_check(cudaGetDriverEntryPointByVersion("cuStreamBatchMemOp", &f, 12000,
                                                    cudaEnableDefault, &found));
        return found == cudaDriverEntryPointSuccess ? reinterpret_cast<BatchMemOp>(f) : nullptr;
    }();
    return function;
}

// Writes a number to memory after all earlier work of the stream.
CUstreamBatchMemOpParams write(void* address, uint32_t value) {
    CUstreamBatchMemOpParams op = {};
    op.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32};
    op.writeValue.address = reinterpret_cast<CUdeviceptr>(address);
    op.writeValue.value = value;
    return op;
}
// Waits until a number in memory, which only grows, reaches `value`.
CUstreamBatchMemOpParams wait(void* address, uint32_t value) {
    CUstreamBatchMemOpParams op = {};
    op.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32};
    op.waitValue.address = reinterpret_cast<CUdeviceptr>(address);
    op.waitValue.value = value;
    op.waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    return op;
}
void queue(std::vector<CUstreamBatchMemOpParams> all, const Stream& stream) {
    if (batch_mem_op()(cuda_stream(stream), unsigned(all.size()), all.data(), 0) != CUDA_SUCCESS)
        throw std::runtime_error("CUDA: cuStreamBatchMemOp failed; --copy-engines off avoids it");
}

}  // namespace

PeerMemory::PeerMemory(Communicator::Impl& group)
    : group_(&group), rank_(group.rank), size_(group.size()) {
    cuda_check(cudaEventCreateWithFlags(&turn_ended_, cudaEventDisableTiming));
}

std::shared_ptr<PeerMemory> PeerMemory::open(Communicator::Impl& group) {
    std::shared_ptr<PeerMemory> memory(new PeerMemory(group));
    std::optional<Block> block = memory->map_new(grain);
    if (!block) return nullptr;
    memory->arrived_ = reinterpret_cast<uint32_t*>(memory->mine(*block));
    cuda_check(cudaMemset(memory->arrived_, 0, size_t(grain)));
    cuda_check(cudaDeviceSynchronize());
    tell_all(group, 0);  // before that, nobody may write to it
    memory->blocks_.push_back(std::move(*block));
    return memory;
}

// Every rank allocates a block and maps the others' blocks. If one rank fails, none gets a block.
std::optional<PeerMemory::Block> PeerMemory::map_new(int64_t bytes) {
    Block block = {
        .by_rank = std::vector<char*>(size_t(size_)), .bytes = bytes, .let_go_at = meetings_ - 1};
    char* const own = allocate_exportable(bytes);
    Export exported = {own && batch_mem_op(), boot_id(), {}};
    if (exported.ok) exported.ok = cudaIpcGetMemHandle(&exported.handle, own) == cudaSuccess;
    const std::vector<Export> all = tell_all(*group_, exported);
    bool ok = std::ranges::all_of(
        all, [&](const Export& e) { return e.ok && e.machine == exported.machine; });
    for (int r = 0; r < size_ && ok; ++r) {
        void* mapped = own;
        if (r != rank_)
            ok = cudaIpcOpenMemHandle(&mapped, all[size_t(r)].handle,
                                      cudaIpcMemLazyEnablePeerAccess) == cudaSuccess;
        block.by_rank[size_t(r)] = static_cast<char*>(mapped);
    }
    if (std::ranges::all_of(tell_all(*group_, char(ok)), [](char there) { return there != 0; }))
        return block;
    cudaGetLastError();
    cudaFree(own);
    return std::nullopt;
}

void* PeerMemory::allocate(int64_t bytes) {
    const int64_t taken = (bytes + grain - 1) / grain * grain;
    auto block =
        std::ranges::find_if(blocks_, [&](const Block& b) { return !b.used && b.bytes == taken; });
    MappedMemory& total = mapped_memory();
    if (block == blocks_.end()) {
        std::optional<Block> added = map_new(taken);
        if (!added) return nullptr;
        blocks_.push_back(std::move(*added));
        block = std::prev(blocks_.end());
        total.held += taken;
    }
    block->used = true;
    total.used += taken;
    total.most_used = std::max(total.most_used, total.used);
    return mine(*block);
}

void PeerMemory::free(void* data) {
    auto block = std::ranges::find_if(blocks_, [&](const Block& b) { return mine(b) == data; });
    block->used = false;
    block->let_go_at = meetings_;
    mapped_memory().used -= block->bytes;
}

const PeerMemory::Block* PeerMemory::block_of(const void* data) const {
    const auto* address = static_cast<const char*>(data);
    auto block = std::ranges::find_if(
        blocks_, [&](const Block& b) { return mine(b) <= address && address < mine(b) + b.bytes; });
    return block == blocks_.end() ? nullptr : &*block;
}

char* PeerMemory::at(int peer, const void* data) const {
    const Block* block = block_of(data);
    check(block, "no symmetric memory");
    return block->by_rank[size_t(peer)] + (static_cast<const char*>(data) - mine(*block));
}

void PeerMemory::meet(const Stream& stream) {
    ++meetings_;
    std::vector<CUstreamBatchMemOpParams> all;
    for (int r = 0; r < size_; ++r)
        if (r != rank_) all.push_back(write(at(r, arrived_ + rank_), meetings_));
    for (int r = 0; r < size_; ++r)
        if (r != rank_) all.push_back(wait(arrived_ + r, meetings_));
    queue(std::move(all), stream);
}

void PeerMemory::tell(int peer, int counter, uint32_t value, const Stream& stream) {
    queue({write(at(peer, arrived_ + size_ + counter), value)}, stream);
}
void PeerMemory::await(int counter, uint32_t value, const Stream& stream) {
    queue({wait(arrived_ + size_ + counter, value)}, stream);
}

}  // namespace ultrascale
