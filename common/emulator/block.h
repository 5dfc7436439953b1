// A running block of threads: the state shared by the code that launches it (simt.cpp) and the
// functions that its threads call (meet.cpp).
#pragma once

#include <fmt/format.h>

#include <boost/context/fiber.hpp>
#include <string>
#include <vector>

#include "simt.h"
#include "source.h"

namespace simt {

struct Thread : Running {
    boost::context::fiber fiber;
    uint3 index;
    const void* waits_at = nullptr;  // in the code; nullptr if it does not wait
    const char* waits_for = "";
    bool ended = false;
};

// Lanes that exchange values. Two sets of values alternate: a lane that has already reached the
// next exchange must not overwrite what another lane has not read yet.
struct Meeting {
    uint32_t mask = 0, arrived = 0;
    const char* what = "";
    uint64_t number = 0;
    Lanes lanes[2];
};

struct Block {
    const Call& call;
    dim3 size;
    uint3 index;
    void* shared;
    size_t shared_bytes;
    CoreObserver* observer;
    const SharedArrays& arrays;
    std::vector<Thread> threads = {};
    std::vector<Meeting> meetings = {};  // a warp has 32: one for each lowest lane of a mask
    unsigned at_barrier = 0;
    uint64_t barriers = 0;
    uint64_t progress = 0;  // arrivals and ends: if a round adds none, the block is deadlocked
    boost::context::fiber scheduler = {};
    std::exception_ptr failure = {};

    void wait(Thread& self, const char* what, const void* code) {
        self.waits_for = what, self.waits_at = code;
        scheduler = std::move(scheduler).resume();
        running = nullptr;
    }
};
extern thread_local constinit Block* block;  // the block that runs on this core

// For messages: a place in the source, an index, the kernel and the block.
inline std::string location(const char* function, const void* code) {
    return fmt::format("{} ({})", function, source_line(code));
}
inline std::string text(uint3 i) { return fmt::format("({}, {}, {})", i.x, i.y, i.z); }
inline std::string header(const Block& b) {
    return fmt::format("kernel {}, block {}", source_line(inside(b.call.kernel)), text(b.index));
}

}  // namespace simt
