#include "simt.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <boost/context/fiber.hpp>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "observer.h"
#include "shared_arrays.h"
#include "source.h"

thread_local constinit uint3 threadIdx{}, blockIdx{};
thread_local constinit dim3 blockDim, gridDim;

namespace ultrascale {
int64_t shared_memory_per_block();  // cuda_common.h's
}

namespace simt {

thread_local constinit Running* running = nullptr;
Observer* observer = nullptr;

namespace {

namespace context = boost::context;

constexpr size_t stack_bytes = 128 << 10;

// Stacks are kept for the next block: mapped once, touched where they are used.
struct Stacks {
    std::vector<void*> free;
    ~Stacks() {
        for (void* stack : free) munmap(stack, stack_bytes);
    }
};
thread_local Stacks stacks;

struct StackAllocator {
    Running& thread;
    context::stack_context allocate() {
        void* memory = nullptr;
        if (stacks.free.empty()) {
            memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (memory == MAP_FAILED) throw std::bad_alloc();
        } else {
            memory = stacks.free.back();
            stacks.free.pop_back();
        }
        context::stack_context stack;
        stack.size = stack_bytes;
        stack.sp = static_cast<char*>(memory) + stack_bytes;
        thread.stack = memory, thread.stack_end = stack.sp;
        return stack;
    }
    void deallocate(context::stack_context& stack) { stacks.free.push_back(static_cast<char*>(stack.sp) - stack_bytes); }
};

struct Thread : Running {
    context::fiber fiber;
    uint3 index;
    const void* waits_at = nullptr;  // code; nullptr: it does not wait
    const char* waits_for = "";
    bool ended = false;
};

// Lanes that exchange values. Two sets of values by turns: a lane that is already at the next exchange must not overwrite what
// another one has not read yet.
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
    uint64_t progress = 0;  // arrivals and ends: if a round adds none, nothing will ever happen
    context::fiber scheduler = {};
    std::exception_ptr failure = {};

    void wait(Thread& self, const char* what, const void* code) {
        self.waits_for = what, self.waits_at = code;
        scheduler = std::move(scheduler).resume();
        running = nullptr;
    }
};
thread_local Block* block = nullptr;

// While a thread is in our own code its accesses are not looked at. (They would be: where the same inline function is in kernels'
// objects too, the linker keeps one of them, perhaps the one that reports.)
struct OwnCode {
    Thread& self = static_cast<Thread&>(*running);
    OwnCode() { running = nullptr; }
    ~OwnCode() { running = &self; }
};

std::string place(const char* function, const void* code) { return fmt::format("{} ({})", function, source_line(code)); }

std::string text(uint3 i) { return fmt::format("({}, {}, {})", i.x, i.y, i.z); }

// Who waits where, in groups of alike.
std::string who_waits(const Block& b) {
    std::map<std::pair<std::string, const void*>, std::vector<uint32_t>> groups;
    for (const Thread& t : b.threads) groups[{t.ended ? "" : t.waits_for, t.ended ? nullptr : t.waits_at}].push_back(t.thread);
    std::string all;
    for (const auto& [what, members] : groups)
        all += fmt::format("{}{} thread{} (the first is {}) {}", all.empty() ? "" : "; ", members.size(), members.size() == 1 ? "" : "s",
                           members.front(), what.second ? "wait at " + place(what.first.c_str(), what.second) : "ended");
    return all;
}

std::string header(const Block& b) { return fmt::format("kernel {}, block {}", source_line(inside(b.call.kernel)), text(b.index)); }

[[noreturn]] void fail(Thread& self, const std::string& what) {
    Block& b = *block;
    b.failure = std::make_exception_ptr(KernelError(fmt::format("{}, thread {}: {}", header(b), text(self.index), what)));
    for (;;) b.wait(self, "", nullptr);  // the scheduler does not come back
}

// Runs one block to its end on this core.
void run_block(Block& b, dim3 grid) {
    const uint32_t count = b.size.x * b.size.y * b.size.z;
    b.threads = std::vector<Thread>(count);
    b.meetings.assign((count + warp_size - 1) / warp_size * warp_size, {});
    blockDim = b.size, gridDim = grid, blockIdx = b.index;
    block = &b;
    for (uint32_t i = 0; i < count; ++i) {
        Thread& t = b.threads[i];
        t.thread = i;
        t.observer = b.observer, t.arrays = &b.arrays;
        t.index = {i % b.size.x, i / b.size.x % b.size.y, i / b.size.x / b.size.y};
        t.shared = b.shared, t.shared_end = static_cast<char*>(b.shared) + b.shared_bytes;
        t.arguments = b.call.arguments, t.arguments_end = static_cast<const char*>(b.call.arguments) + b.call.bytes;
        t.fiber = context::fiber(std::allocator_arg, StackAllocator{t}, [&b, &t](context::fiber&& scheduler) {
            b.scheduler = std::move(scheduler);
            running = &t;
            b.call.run(b.call.arguments);
            running = nullptr;
            t.ended = true;
            ++b.progress;
            return std::move(b.scheduler);
        });
    }
    if (b.observer) b.observer->block_begins(b.index, count, b.shared, b.shared_bytes);
    uint32_t left = count;
    while (left > 0 && !b.failure) {
        const uint64_t before = b.progress;
        for (Thread& t : b.threads) {
            if (t.ended) continue;
            threadIdx = t.index;
            t.fiber = std::move(t.fiber).resume();
            running = nullptr;
            if (t.ended) --left;
            if (b.failure) break;
        }
        if (b.progress == before && !b.failure) {
            b.failure = std::make_exception_ptr(
                KernelError(fmt::format("{}: threads wait for others that will never come: {}", header(b), who_waits(b))));
        }
    }
    block = nullptr;
    // What did not end cannot be unwound: a fault may lie in code that g++ takes for code that does not throw. Its stack is given up.
    for (Thread& t : b.threads)
        if (!t.ended) new context::fiber(std::move(t.fiber));
    if (b.failure) std::rethrow_exception(b.failure);
    if (b.observer) b.observer->block_ends();
}

// As large as devices allow (CUDA C++ Programming Guide, "Compute Capabilities", technical specifications).
void check_launch(const Call& call, dim3 grid, dim3 size, size_t dynamic_shared_bytes) {
    const auto check = [&](bool right, const std::string& what) {
        if (!right) throw KernelError(fmt::format("kernel {}: {}", source_line(inside(call.kernel)), what));
    };
    const uint64_t threads = uint64_t(size.x) * size.y * size.z;
    check(threads > 0 && threads <= 1024, fmt::format("a block of {} threads: 1 to 1024 are possible", threads));
    check(size.z <= 64, fmt::format("a block of {} threads in z: at most 64 are possible", size.z));
    check(grid.x > 0 && grid.y > 0 && grid.z > 0, fmt::format("a grid of {} blocks: none may be 0", text({grid.x, grid.y, grid.z})));
    check(grid.x < 1u << 31 && grid.y < 1 << 16 && grid.z < 1 << 16,
          fmt::format("a grid of {} blocks: at most (2147483647, 65535, 65535) are possible", text({grid.x, grid.y, grid.z})));
    const int64_t shared = ultrascale::shared_memory_per_block();
    check(dynamic_shared_bytes <= size_t(shared),
          fmt::format("{} bytes of dynamic shared memory: at most {} are possible", dynamic_shared_bytes, shared));
}

}  // namespace

void launch(const Call& call, dim3 grid, dim3 size, size_t dynamic_shared_bytes) {
    check_launch(call, grid, size, dynamic_shared_bytes);
    const uint64_t count = uint64_t(grid.x) * grid.y * grid.z;
    if (observer) observer->launched(call, grid, size);
    const SharedArrays& arrays = shared_arrays(call.kernel);
    std::exception_ptr failure;
    std::mutex mutex;
#pragma omp parallel
    {
        std::vector<char> memory(dynamic_shared_bytes + 128);
        void* shared = memory.data();
        size_t room = memory.size();
        std::align(128, dynamic_shared_bytes, shared, room);
        const std::unique_ptr<CoreObserver> looks_on = observer ? observer->on_core(call) : nullptr;
#pragma omp for schedule(dynamic)
        for (uint64_t i = 0; i < count; ++i) {
            {
                std::lock_guard lock(mutex);
                if (failure) continue;
            }
            // NaN and -1 to whoever reads what it did not write.
            std::memset(shared, 0xff, dynamic_shared_bytes);
            for (const SharedArray& array : arrays.all) std::memset(SharedArrays::begin(array), 0xff, array.bytes);
            const uint3 index = {unsigned(i % grid.x), unsigned(i / grid.x % grid.y), unsigned(i / grid.x / grid.y)};
            Block b{call, size, index, shared, dynamic_shared_bytes, looks_on.get(), arrays};
            try {
                run_block(b, grid);
            } catch (...) {
                std::lock_guard lock(mutex);
                if (!failure) failure = std::current_exception();
            }
        }
    }
    if (failure) std::rethrow_exception(failure);
}

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
        fail(here.self, fmt::format("{} with mask {:#x}, which leaves out the lane that calls it", place(what, code), mask));
    Meeting& meeting = b.meetings[here.self.thread / warp_size * warp_size + uint32_t(std::countr_zero(mask))];
    if (meeting.arrived == 0) {
        meeting.mask = mask, meeting.what = what;
    } else if (meeting.mask != mask || std::strcmp(meeting.what, what) != 0) {
        fail(here.self, fmt::format("{} with mask {:#x} while other lanes are at {} with mask {:#x}", place(what, code), mask, meeting.what,
                                    meeting.mask));
    }
    const uint64_t number = meeting.number;
    Lanes& lanes = meeting.lanes[number % 2];
    lanes.values[own] = value;
    meeting.arrived |= self;
    ++b.progress;
    if (meeting.arrived == mask) {
        meeting.arrived = 0;
        ++meeting.number;
        if (b.observer) b.observer->lanes_met(here.self.thread / warp_size, mask, std::strcmp(what, "__syncwarp") == 0);
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

void fail(const char* what) {
    OwnCode here;
    fail(here.self, what);
}

void let_others_run(Running& self) {
    ++block->progress;
    block->wait(static_cast<Thread&>(self), "", nullptr);
}

}  // namespace simt
