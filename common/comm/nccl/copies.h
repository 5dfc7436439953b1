// Copies by copy engines, and the end of a call that consists of copies. Private to the CUDA
// backend's communication.
#pragma once

#include <vector>

#include "comm_nccl.h"

namespace ultrascale {

// Copies that do not depend on each other. They run concurrently if CUDA supports it, because each
// copy takes 10 us to start.
class Copies {
public:
    void add(void* to, const void* from, int64_t bytes) {
        if (bytes > 0 && to != from)
            to_.push_back(to), from_.push_back(from), bytes_.push_back(size_t(bytes));
    }
    void add_to_peer(void* to, const void* from, int64_t bytes) {
        bytes_handed_over() += bytes;
        add(to, from, bytes);
    }
    // Adds a copy within this GPU's memory. A kernel on a stream of its own does a large one: it
    // takes little time there, and leaves the copy engines to the other copies.
    void add_own(void* to, const void* from, int64_t bytes) {
        own_to_ = to, own_from_ = from, own_bytes_ = size_t(bytes);
    }
    void queue(Stream& stream) {
        if (own_bytes_ > 0) {
            own_slices().wait(stream.record());
            cuda_check(cudaMemcpyAsync(own_to_, own_from_, own_bytes_, cudaMemcpyDeviceToDevice,
                                       cuda_stream(own_slices())));
        }
        queue_batch(stream);
        if (own_bytes_ > 0) stream.wait(own_slices().record());
    }

private:
    void queue_batch(Stream& stream) {
        if (to_.empty()) return;
#if CUDART_VERSION >= 13000
        cudaMemcpyAttributes by_engine = {};
        by_engine.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
        by_engine.flags = cudaMemcpyFlagPreferOverlapWithCompute;
        size_t first = 0;
        cuda_check(cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(), to_.size(),
                                        &by_engine, &first, 1, cuda_stream(stream)));
#else
        for (size_t i = 0; i < to_.size(); ++i)
            cuda_check(cudaMemcpyAsync(to_[i], from_[i], bytes_[i], cudaMemcpyDeviceToDevice,
                                       cuda_stream(stream)));
#endif
    }

    std::vector<void*> to_;
    std::vector<const void*> from_;
    std::vector<size_t> bytes_;
    void* own_to_ = nullptr;
    const void* own_from_ = nullptr;
    size_t own_bytes_ = 0;
};

// The slot in which rank `at` receives data from rank `from`: it has one for each other rank.
inline int slot_of(int from, int at) { return from < at ? from : from - 1; }

// Ends a call whose copies and waits are all queued in the stream.
inline void finish_copies(Work::Impl& work, const Timestamp& begin, Stream& stream) {
    work.end = Timestamp::in(stream);
    work.finished = stream.record();
    add_measurement({work.communicator->name, work.kind, begin, work.end, !work.asynchronous, false,
                     work.span});
}

}  // namespace ultrascale
