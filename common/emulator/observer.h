// An observer watches kernels while they run: simt.cpp, meet.cpp and access.cpp report every step
// that concerns memory to it. The microscope (microscope.h) is one.
#pragma once

#include <memory>

#include "simt.h"

namespace simt {

enum class Access {
    global_load,
    global_store,
    global_atomic,
    shared_load,
    shared_store,
    shared_atomic
};
inline bool is_shared(Access access) { return access >= Access::shared_load; }

// Observes the blocks that one core runs, one after another. Threads are numbered within their
// block; a warp is 32 consecutive threads.
struct CoreObserver {
    virtual ~CoreObserver() = default;
    virtual void block_begins(uint3 index, uint32_t threads, const void* shared,
                              size_t shared_bytes) = 0;
    // Called before the access is made. `code` is the address after the instruction that makes it.
    virtual void access(uint32_t thread, const void* first, size_t bytes, Access access,
                        const void* code) = 0;
    // Called before access(). Returns whether the thread is so far ahead of the others that they
    // should run first.
    virtual bool far_ahead(uint32_t thread, Access access) = 0;
    virtual void barrier() = 0;  // all threads of the block have reached it
    // Lanes of a warp have met at a shuffle, a vote or a __syncwarp. Only __syncwarp orders their
    // accesses to memory (CUDA C++ Programming Guide, "Warp Shuffle Functions": "do not imply a
    // memory barrier").
    virtual void lanes_met(uint32_t warp, uint32_t mask, bool orders_memory) = 0;
    virtual void block_ends() = 0;
};

struct Observer {
    virtual ~Observer() = default;
    virtual void launched(const Call& call, dim3 grid, dim3 block) = 0;
    virtual std::unique_ptr<CoreObserver> on_core(
        const Call& call) = 0;  // called by each core; destroyed when the core has no more blocks
};
extern Observer* observer;  // nullptr: none

}  // namespace simt
