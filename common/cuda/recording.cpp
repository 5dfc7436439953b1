// Recordings on CUDA: graphs, captured from the compute stream.
//
// Tensors of a recording come from an arena. Its memory is never given back, so it still belongs to
// the recording when that is replayed. Several recordings share the arena, because the compute
// stream replays them one after the other.
#include "core/recording.h"

#include <vector>

#include "core/arena.h"
#include "core/tensor.h"
#include "cuda_common.h"
#include "recording.h"

namespace ultrascale {

namespace {

void* new_memory(int64_t bytes) {
    void* data = nullptr;
    if (cudaMalloc(&data, size_t(bytes)) == cudaSuccess) return data;
    cudaGetLastError();  // the null pointer reports out of memory
    return nullptr;
}

// Memory that a recording holds besides the arena's, for its replays: lists of addresses and sizes
// that operations copy to the device, which are copied only once because they do not change; and
// what was freed in the recording, but is older.
struct Held : Allocator {
    std::vector<void*> constants, freed;
    void* allocate(int64_t bytes) override { return constants.emplace_back(new_memory(bytes)); }
    void free(void*) override {}
    ~Held() override {
        for (void* data : constants) cudaFree(data);
        for (void* data : freed) cudaFreeAsync(data, cuda_compute());
    }
};

struct Recorder {
    Arena arena{new_memory, int64_t(32) << 20};
    std::shared_ptr<Held> held;  // of the recording that is being made, if one is
};
Recorder& recorder() {
    static Recorder& recorder = *new Recorder;  // tensors may be freed at the program's exit
    return recorder;
}

class Graph : public Recording {
public:
    ~Graph() override {
        if (recorder().held == held_) abandon();
        if (graph_) cudaGraphExecDestroy(graph_);
    }
    void begin() override {
        check(!is_recording(), "two recordings at a time");
        cuda_release_unused();  // the recording's memory takes its place
        recorder().held = held_;
        // Relaxed: meanwhile this thread may allocate, on which nothing recorded depends.
        cuda_check(cudaStreamBeginCapture(cuda_compute(), cudaStreamCaptureModeRelaxed));
    }
    void end() override {
        cudaGraph_t captured = nullptr;
        const cudaError_t status = cudaStreamEndCapture(cuda_compute(), &captured);
        recorder().held = nullptr;
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
        recorder().held = nullptr;
    }
    cudaGraphExec_t graph_ = nullptr;
    int64_t launches_ = 0;
    std::shared_ptr<Held> held_ = std::make_shared<Held>();
};

}  // namespace

std::unique_ptr<Recording> make_recording() { return std::make_unique<Graph>(); }

bool is_recording() { return bool(recorder().held); }

RecordedMemory recorded_memory() { return {recorder().arena.held(), recorder().arena.most_used()}; }

void* recorded_allocate(int64_t bytes) { return recorder().arena.allocate(bytes); }

bool recorded_free(void* data) {
    if (recorder().arena.free(data)) return true;
    if (recorder().held) recorder().held->freed.push_back(data);
    return is_recording();
}

Tensor constant_on_device(const void* data, int64_t bytes) {
    const std::shared_ptr<Held> held = recorder().held;
    Tensor tensor = Tensor::empty({bytes / 4}, DType::int32, Memory::workspace, held);
    if (held) {  // now, beside the recording
        static const cudaStream_t beside = [] {
            cudaStream_t stream;
            cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
            return stream;
        }();
        cuda_check(
            cudaMemcpyAsync(tensor.data(), data, size_t(bytes), cudaMemcpyHostToDevice, beside));
        cuda_check(cudaStreamSynchronize(beside));
    } else {
        cuda_check(cudaMemcpyAsync(tensor.data(), data, size_t(bytes), cudaMemcpyHostToDevice,
                                   cuda_compute()));
    }
    return tensor;
}

}  // namespace ultrascale
