// Recordings on CUDA: graphs, captured from the compute stream.
//
// Tensors of a recording come from a pool of its own, through a stream in which nothing else is
// queued. There the pool takes and gives memory at once, in the order of the host's calls, which is
// the order of the recorded operations: a tensor may have the memory of one that was freed before.
// The pool never gives memory back, so it still belongs to the recording when that is replayed.
// Several recordings share the pool, because the compute stream replays them one after the other.
#include "core/recording.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "cuda_common.h"
#include "recording.h"

namespace ultrascale {

namespace {

// Lists of addresses and sizes that operations copy to the device. They are the same in every
// replay, so they are copied once, to memory that nothing else ever uses.
struct Constants : Allocator {
    std::vector<void*> held;
    void* allocate(int64_t bytes) override {
        void* data = nullptr;
        if (cudaMalloc(&data, size_t(bytes)) != cudaSuccess) return cudaGetLastError(), nullptr;
        return held.emplace_back(data);
    }
    void free(void*) override {}  // replays read it
    ~Constants() override {
        for (void* data : held) cudaFree(data);
    }
};

struct Pool {
    cudaMemPool_t pool = nullptr;
    cudaStream_t stream = nullptr;
    std::unordered_set<void*> blocks;
    std::shared_ptr<Constants> constants;  // of the recording that is being made, if one is
    std::vector<void*> freed;              // memory from before that recording, freed in it

    Pool() {
        cuda_select_device();
        cudaMemPoolProps properties = {};
        properties.allocType = cudaMemAllocationTypePinned;
        properties.location.type = cudaMemLocationTypeDevice;
        cuda_check(cudaGetDevice(&properties.location.id));
        cuda_check(cudaMemPoolCreate(&pool, &properties));
        uint64_t all = UINT64_MAX;
        cuda_check(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all));
        cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    }
};

Pool& pool() {
    static Pool& pool = *new Pool;  // tensors may be freed at the program's exit
    return pool;
}

class Graph : public Recording {
public:
    ~Graph() override {
        if (recording_) abandon();
        if (graph_) cudaGraphExecDestroy(graph_);
    }
    void begin() override {
        check(!is_recording(), "two recordings at a time");
        cuda_release_unused();  // the recording's memory takes its place
        pool().constants = constants_, recording_ = true;
        // Relaxed: meanwhile this thread may allocate, on which nothing recorded depends.
        cuda_check(cudaStreamBeginCapture(cuda_compute(), cudaStreamCaptureModeRelaxed));
    }
    void end() override {
        cudaGraph_t captured = nullptr;
        const cudaError_t status = cudaStreamEndCapture(cuda_compute(), &captured);
        const bool freed_others = finish();
        cuda_check(status);
        check(!freed_others, "a recording freed a tensor from before, which replays would read");
        size_t nodes = 0;
        cuda_check(cudaGraphGetNodes(captured, nullptr, &nodes));
        launches_ = int64_t(nodes);
        cuda_check(cudaGraphInstantiate(&graph_, captured, 0));
        cuda_check(cudaGraphDestroy(captured));
    }
    void replay() override { cuda_check(cudaGraphLaunch(graph_, cuda_compute())); }
    int64_t launches() const override { return launches_; }

private:
    void abandon() {
        cudaGraph_t captured = nullptr;
        if (cudaStreamEndCapture(cuda_compute(), &captured) == cudaSuccess)
            cudaGraphDestroy(captured);
        cudaGetLastError();  // why it was abandoned is being thrown
        finish();
    }
    // Returns whether memory from before the recording was freed in it; now it is.
    bool finish() {
        Pool& p = pool();
        recording_ = false, p.constants = nullptr;
        const std::vector<void*> freed = std::exchange(p.freed, {});
        for (void* data : freed) cudaFreeAsync(data, cuda_compute());
        return !freed.empty();
    }
    bool recording_ = false;
    cudaGraphExec_t graph_ = nullptr;
    int64_t launches_ = 0;
    std::shared_ptr<Constants> constants_ = std::make_shared<Constants>();
};

bool any = false;  // a recording was made

}  // namespace

std::unique_ptr<Recording> make_recording() {
    any = true;
    return std::make_unique<Graph>();
}

bool is_recording() { return any && pool().constants; }
cudaMemPool_t recordings_pool() { return pool().pool; }

void* recorded_allocate(int64_t bytes) {
    Pool& p = pool();
    void* data = nullptr;
    if (cudaMallocFromPoolAsync(&data, size_t(bytes), p.pool, p.stream) != cudaSuccess)
        return cudaGetLastError(), nullptr;
    p.blocks.insert(data);
    return data;
}

bool recorded_free(void* data) {
    if (!any) return false;
    Pool& p = pool();
    if (p.blocks.erase(data) > 0) return cudaFreeAsync(data, p.stream), true;
    if (is_recording()) p.freed.push_back(data);
    return is_recording();
}

Tensor constant_on_device(const void* data, int64_t bytes) {
    const std::shared_ptr<Constants> constants = any ? pool().constants : nullptr;
    Tensor tensor = Tensor::empty({bytes / 4}, DType::int32, Memory::workspace, constants);
    const cudaStream_t stream = constants ? pool().stream : cuda_compute();
    cuda_check(cudaMemcpyAsync(tensor.data(), data, size_t(bytes), cudaMemcpyHostToDevice, stream));
    if (constants) cuda_check(cudaStreamSynchronize(stream));
    return tensor;
}

}  // namespace ultrascale
