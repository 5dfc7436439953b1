// Runs a grid: distributes its blocks over the cores, and runs a block's threads in turn, as
// fibers.
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>

#include "block.h"
#include "observer.h"
#include "shared_arrays.h"

thread_local constinit uint3 threadIdx{}, blockIdx{};
thread_local constinit dim3 blockDim, gridDim;

namespace ultrascale {
int64_t shared_memory_per_block();  // cuda_common.h's
}

namespace simt {

thread_local constinit Running* running = nullptr;
thread_local constinit Block* block = nullptr;
Observer* observer = nullptr;

namespace {

namespace context = boost::context;

constexpr size_t stack_bytes = 128 << 10;

// Stacks are mapped once and kept for the next block; only the pages that are used take memory.
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
            memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
    void deallocate(context::stack_context& stack) {
        stacks.free.push_back(static_cast<char*>(stack.sp) - stack_bytes);
    }
};

// Describes which threads wait where; threads that wait at the same place form a group.
std::string who_waits(const Block& b) {
    std::map<std::pair<std::string, const void*>, std::vector<uint32_t>> groups;
    for (const Thread& t : b.threads)
        groups[{t.ended ? "" : t.waits_for, t.ended ? nullptr : t.waits_at}].push_back(t.thread);
    std::string all;
    for (const auto& [what, members] : groups)
        all += fmt::format(
            "{}{} thread{} (the first is {}) {}", all.empty() ? "" : "; ", members.size(),
            members.size() == 1 ? "" : "s", members.front(),
            what.second ? "wait at " + location(what.first.c_str(), what.second) : "ended");
    return all;
}

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
        t.arguments = b.call.arguments,
        t.arguments_end = static_cast<const char*>(b.call.arguments) + b.call.bytes;
        t.fiber = context::fiber(std::allocator_arg, StackAllocator{t},
                                 [&b, &t](context::fiber&& scheduler) {
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
            b.failure = std::make_exception_ptr(KernelError(fmt::format(
                "{}: threads wait for others that will never come: {}", header(b), who_waits(b))));
        }
    }
    block = nullptr;
    // Threads that did not end cannot be unwound, because a fault may lie in code that g++ assumes
    // not to throw. Their stacks are leaked.
    for (Thread& t : b.threads)
        if (!t.ended) new context::fiber(std::move(t.fiber));
    if (b.failure) std::rethrow_exception(b.failure);
    if (b.observer) b.observer->block_ends();
}

// The limits are those of devices (CUDA C++ Programming Guide, "Compute Capabilities", technical
// specifications).
void check_launch(const Call& call, dim3 grid, dim3 size, size_t dynamic_shared_bytes) {
    const auto check = [&](bool right, const std::string& what) {
        if (!right)
            throw KernelError(fmt::format("kernel {}: {}", source_line(inside(call.kernel)), what));
    };
    const uint64_t threads = uint64_t(size.x) * size.y * size.z;
    check(threads > 0 && threads <= 1024,
          fmt::format("a block of {} threads: 1 to 1024 are possible", threads));
    check(size.z <= 64, fmt::format("a block of {} threads in z: at most 64 are possible", size.z));
    check(grid.x > 0 && grid.y > 0 && grid.z > 0,
          fmt::format("a grid of {} blocks: none may be 0", text({grid.x, grid.y, grid.z})));
    check(grid.x < 1u << 31 && grid.y < 1 << 16 && grid.z < 1 << 16,
          fmt::format("a grid of {} blocks: at most (2147483647, 65535, 65535) are possible",
                      text({grid.x, grid.y, grid.z})));
    const int64_t shared = ultrascale::shared_memory_per_block();
    check(dynamic_shared_bytes <= size_t(shared),
          fmt::format("{} bytes of dynamic shared memory: at most {} are possible",
                      dynamic_shared_bytes, shared));
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
            // Memory that is read before it is written holds NaN and -1.
            std::memset(shared, 0xff, dynamic_shared_bytes);
            for (const SharedArray& array : arrays.all)
                std::memset(SharedArrays::begin(array), 0xff, array.bytes);
            const uint3 index = {unsigned(i % grid.x), unsigned(i / grid.x % grid.y),
                                 unsigned(i / grid.x / grid.y)};
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

}  // namespace simt
