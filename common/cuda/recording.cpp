// Recordings on CUDA: graphs, captured from the compute stream.
//
// Tensors of a recording come from a pool of its own, through a stream in which nothing else is
// queued. There the pool takes and gives memory at once, in the order of the host's calls, which is
// the order of the recorded operations: a tensor may have the memory of one that was freed before.
// The pool never gives memory back, so it still belongs to the recording when that is replayed.
// Several recordings share the pool, because the compute stream replays them one after the other.
#include "core/recording.h"

#include <unordered_set>
#include <vector>

#include "core/tensor.h"
#include "cuda_common.h"
#include "recording.h"

namespace ultrascale {

namespace {

// Memory that a recording holds besides the pool's, for its replays: lists of addresses and sizes
// that operations copy to the device, which are copied only once because they do not change; and
// what was freed in the recording, but is older.
struct Held : Allocator {
    std::vector<void*> constants, freed;
    void* allocate(int64_t bytes) override {
        void* data = nullptr;
        if (cudaMalloc(&data, size_t(bytes)) != cudaSuccess) return cudaGetLastError(), nullptr;
        return constants.emplace_back(data);
    }
    void free(void*) override {}
    ~Held() override {
        for (void* data : constants) cudaFree(data);
        for (void* data : freed) cudaFreeAsync(data, cuda_compute());
    }
};

struct Pool {
    cudaMemPool_t pool = nullptr;
    cudaStream_t stream = nullptr;
    std::unordered_set<void*> blocks;
    std::shared_ptr<Held> held;  // of the recording that is being made, if one is

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
        if (pool().held == held_) abandon();
        if (graph_) cudaGraphExecDestroy(graph_);
    }
    void begin() override {
        check(!is_recording(), "two recordings at a time");
        cuda_release_unused();  // the recording's memory takes its place
        pool().held = held_;
        // Relaxed: meanwhile this thread may allocate, on which nothing recorded depends.
        cuda_check(cudaStreamBeginCapture(cuda_compute(), cudaStreamCaptureModeRelaxed));
    }
    void end() override {
        cudaGraph_t captured = nullptr;
        const cudaError_t status = cudaStreamEndCapture(cuda_compute(), &captured);
        pool().held = nullptr;
        cuda_check(status);
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
        pool().held = nullptr;
    }
    cudaGraphExec_t graph_ = nullptr;
    int64_t launches_ = 0;
    std::shared_ptr<Held> held_ = std::make_shared<Held>();
};

bool any = false;  // a recording was made

}  // namespace

std::unique_ptr<Recording> make_recording() {
    any = true;
    return std::make_unique<Graph>();
}

bool is_recording() { return any && pool().held; }
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
    if (p.held) p.held->freed.push_back(data);
    return bool(p.held);
}

Tensor constant_on_device(const void* data, int64_t bytes) {
    const std::shared_ptr<Held> held = any ? pool().held : nullptr;
    Tensor tensor = Tensor::empty({bytes / 4}, DType::int32, Memory::workspace, held);
    const cudaStream_t stream = held ? pool().stream : cuda_compute();
    cuda_check(cudaMemcpyAsync(tensor.data(), data, size_t(bytes), cudaMemcpyHostToDevice, stream));
    if (held) cuda_check(cudaStreamSynchronize(stream));
    return tensor;
}

}  // namespace ultrascale
