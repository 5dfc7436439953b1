// The functions that a running thread calls: barriers, exchanges among a warp's lanes, atomic
// operations. A thread that has to wait yields its core to the next thread of its block.
#include <atomic>
#include <bit>
#include <cstring>

#include "block.h"
#include "observer.h"

namespace simt {

namespace {

// While a thread is in our own code, its accesses are not checked. (Some would be reported: if an
// inline function is also in the kernels' object files, the linker keeps only one copy, perhaps the
// one that reports.)
struct OwnCode {
    Thread& self = static_cast<Thread&>(*running);
    OwnCode() { running = nullptr; }
    ~OwnCode() { running = &self; }
};

[[noreturn]] void fail(Thread& self, const std::string& what) {
    Block& b = *block;
    b.failure = std::make_exception_ptr(
        KernelError(fmt::format("{}, thread {}: {}", header(b), text(self.index), what)));
    for (;;) b.wait(self, "", nullptr);  // the scheduler never resumes it
}

}  // namespace

void* dynamic_shared() { return block->shared; }

int lane() { return int(running->thread % warp_size); }

void sync_block() {
    const void* code = __builtin_return_address(0);
    OwnCode here;
    Block& b = *block;
    const uint64_t number = b.barriers;
    ++b.progress;
    if (++b.at_barrier == b.threads.size()) {
        b.at_barrier = 0;
        ++b.barriers;
        if (b.observer) b.observer->barrier();
    } else {
        while (b.barriers == number) b.wait(here.self, "__syncthreads", code);
    }
    here.self.waits_at = nullptr;
}

Lanes exchange(uint32_t mask, uint64_t value, const char* what, const void* code) {
    if (!code) code = __builtin_return_address(0);
    const int own = lane();
    OwnCode here;
    Block& b = *block;
    const uint32_t self = 1u << own;
    if (!(mask & self))
        fail(here.self, fmt::format("{} with mask {:#x}, which leaves out the lane that calls it",
                                    location(what, code), mask));
    Meeting& meeting =
        b.meetings[here.self.thread / warp_size * warp_size + uint32_t(std::countr_zero(mask))];
    if (meeting.arrived == 0) {
        meeting.mask = mask, meeting.what = what;
    } else if (meeting.mask != mask || std::strcmp(meeting.what, what) != 0) {
        fail(here.self,
             fmt::format("{} with mask {:#x} while other lanes are at {} with mask {:#x}",
                         location(what, code), mask, meeting.what, meeting.mask));
    }
    const uint64_t number = meeting.number;
    Lanes& lanes = meeting.lanes[number % 2];
    lanes.values[own] = value;
    meeting.arrived |= self;
    ++b.progress;
    if (meeting.arrived == mask) {
        meeting.arrived = 0;
        ++meeting.number;
        if (b.observer)
            b.observer->lanes_met(here.self.thread / warp_size, mask,
                                  std::strcmp(what, "__syncwarp") == 0);
    } else {
        while (meeting.number == number) b.wait(here.self, what, code);
    }
    here.self.waits_at = nullptr;
    return lanes;
}

uint64_t shuffle(uint32_t mask, uint64_t value, int source, const char* what) {
    if (!(mask >> source & 1)) {
        OwnCode here;
        fail(here.self, fmt::format("{} from lane {}, which the mask leaves out", what, source));
    }
    return exchange(mask, value, what, __builtin_return_address(0)).values[source];
}

template <class T>
static T add_atomically(T* address, T x) {
    std::atomic_ref<T> there(*address);
    T old = there.load();
    while (!there.compare_exchange_weak(old, old + x)) {
    }
    return old;
}
#define ATOMIC_ADD(T)                                                   \
    T atomic_add(T* address, T x) {                                     \
        atomic_access(address, sizeof(T), __builtin_return_address(0)); \
        return add_atomically(address, x);                              \
    }
ATOMIC_ADD(float)
ATOMIC_ADD(double)
ATOMIC_ADD(int)
ATOMIC_ADD(unsigned)
unsigned atomic_max(unsigned* address, unsigned x) {
    atomic_access(address, sizeof x, __builtin_return_address(0));
    std::atomic_ref<unsigned> there(*address);
    unsigned old = there.load();
    while (old < x && !there.compare_exchange_weak(old, x)) {
    }
    return old;
}

void fail(const char* what) {
    OwnCode here;
    fail(here.self, what);
}

void let_others_run(Running& self) {
    ++block->progress;
    block->wait(static_cast<Thread&>(self), "", nullptr);
}

}  // namespace simt
