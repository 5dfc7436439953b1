// Checks every load and store of a kernel, as the compiler reports it. Kernels are compiled with
// -fsanitize=thread, which makes g++ call __tsan_readN(address) before each access; instead of the
// thread sanitizer we link our own functions of these names. They check that each access lies
// within a device allocation, the block's shared memory, the thread's own stack or the program's
// own variables.
#include <fmt/format.h>
#include <link.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <map>
#include <mutex>
#include <utility>

#include "core/memory.h"
#include "observer.h"
#include "shared_arrays.h"
#include "source.h"

namespace simt {

namespace {

struct Region {
    const char *begin, *end;
    bool shared = false;  // by the block's threads
    bool contains(const char* first, size_t bytes) const {
        return first >= begin && first + bytes <= end;
    }
};

// The device's allocations. Never destroyed, because tensors of static lifetime may still be freed
// while the program ends.
struct Allocations {
    std::mutex mutex;
    std::map<const char*, int64_t> bytes;  // by address
    std::atomic<uint64_t> changes = 0;

    // The allocation that contains an address, or the nearest one before it; empty if there is
    // none.
    Region find(const char* address) {
        std::lock_guard lock(mutex);
        const auto behind = bytes.upper_bound(address);
        if (behind == bytes.begin()) return {};
        const auto& [begin, count] = *std::prev(behind);
        return {begin, begin + count};
    }
    void add(const void* data, int64_t count) {
        std::lock_guard lock(mutex);
        bytes[static_cast<const char*>(data)] = count;
        ++changes;
    }
    void remove(const void* data) {
        std::lock_guard lock(mutex);
        bytes.erase(static_cast<const char*>(data));
        ++changes;
    }
};
Allocations& allocations() {
    static auto* all = new Allocations;
    return *all;
}
// Runs before all other constructors of static objects, because some of these may be tensors.
[[gnu::constructor(101)]] void watch_allocations() {
    ultrascale::memory_observe(
        {.allocated = [](const void* data, int64_t bytes) { allocations().add(data, bytes); },
         .freed = [](const void* data) { allocations().remove(data); }});
}

// The part of the program that contains an address: its static variables, or this core's
// thread_local ones. Empty if neither contains it.
Region part_of_program(const char* address) {
    struct Question {
        const char* address;
        Region answer;
    } question = {address, {}};
    dl_iterate_phdr(
        [](dl_phdr_info* module, size_t, void* data) {
            Question& q = *static_cast<Question*>(data);
            for (int i = 0; i < module->dlpi_phnum; ++i) {
                const auto& header = module->dlpi_phdr[i];
                const char* begin = nullptr;
                if (header.p_type == PT_LOAD)
                    begin = reinterpret_cast<const char*>(module->dlpi_addr + header.p_vaddr);
                if (header.p_type == PT_TLS)
                    begin = static_cast<const char*>(module->dlpi_tls_data);
                if (!begin || q.address < begin || q.address >= begin + header.p_memsz) continue;
                q.answer = {begin, begin + header.p_memsz, header.p_type == PT_TLS};
                return 1;
            }
            return 0;
        },
        &question);
    return question.answer;
}

// threadIdx and the like are this core's variables too; on a GPU they are registers.
bool built_in(const void* address) {
    const auto within = [&](const auto& variable) {
        return address >= &variable && address < &variable + 1;
    };
    return within(threadIdx) || within(blockIdx) || within(blockDim) || within(gridDim);
}

// The kernel's __shared__ array that contains an address, or the last one before it.
Region array_of_kernel(const char* address) {
    const SharedArray* const array = running->arrays->before(address);
    if (!array) return {};
    const char* const begin = SharedArrays::begin(*array);
    return {begin, begin + array->bytes, true};
}

// Recently found regions: most accesses are near earlier ones.
thread_local Region recent[8];
thread_local unsigned oldest = 0;
thread_local uint64_t recent_of_allocations = 0;
thread_local const SharedArrays* recent_of_arrays = nullptr;

enum class Kind { load, store, atomic };

[[noreturn]] void refuse(const char* first, size_t bytes, Kind kind, const void* code) {
    Running* const self = std::exchange(running, nullptr);  // our own accesses are not checked
    std::string where = "in no allocation";
    const Region part = part_of_program(first);
    const SharedArray* const array = self->arrays->before(first);
    if (part.shared && array) {
        where = fmt::format("{} bytes from the beginning of __shared__ {} of {}",
                            first - SharedArrays::begin(*array), array->name, array->bytes);
    } else if (const Region near = allocations().find(first); near.begin) {
        where =
            fmt::format("{} byte{} from the beginning of an allocation of {}", first - near.begin,
                        first - near.begin == 1 ? "" : "s", near.end - near.begin);
    }
    const std::string what =
        fmt::format("{} {} bytes out of bounds at {}: {}", kind == Kind::load ? "reads" : "writes",
                    bytes, source_line(code), where);
    running = self;
    fail(what.c_str());
}

[[noreturn]] void refuse_misaligned(size_t bytes, Kind kind, const void* code) {
    Running* const self = std::exchange(running, nullptr);
    const std::string what =
        fmt::format("{} {} bytes at an address that is no multiple of {}, at {}",
                    kind == Kind::load ? "reads" : "writes", bytes, bytes, source_line(code));
    running = self;
    fail(what.c_str());
}

// Memory of the thread alone (its stack, the kernel's arguments), of its block, or of all threads.
enum class Space { own, shared, global };

Space check(const char* first, size_t bytes, Kind kind, const void* code) {
    if (Region{static_cast<const char*>(running->stack),
               static_cast<const char*>(running->stack_end)}
            .contains(first, bytes))
        return Space::own;
    if (const uint64_t now = allocations().changes;
        now != recent_of_allocations || running->arrays != recent_of_arrays) {
        for (Region& region : recent) region = {};
        recent_of_allocations = now, recent_of_arrays = running->arrays;
    }
    for (const Region& region : recent)
        if (region.contains(first, bytes)) return region.shared ? Space::shared : Space::global;
    if (Region{static_cast<const char*>(running->shared),
               static_cast<const char*>(running->shared_end)}
            .contains(first, bytes))
        return Space::shared;
    if (Region{static_cast<const char*>(running->arguments),
               static_cast<const char*>(running->arguments_end)}
            .contains(first, bytes))
        return Space::own;
    if (built_in(first)) return Space::own;
    Region region = array_of_kernel(first);
    if (!region.contains(first, bytes)) region = allocations().find(first);
    if (!region.contains(first, bytes)) {
        region = part_of_program(first);
        if (region.shared && running->arrays->known) region = {};
    }
    if (region.contains(first, bytes)) {
        recent[oldest++ % std::size(recent)] = region;
        return region.shared ? Space::shared : Space::global;
    }
    refuse(first, bytes, kind, code);
}

void observe(const void* first, size_t bytes, Kind kind, Space space, const void* code) {
    if (space == Space::own || built_in(first)) return;
    Running* const self = std::exchange(running, nullptr);  // our own accesses are not checked
    const auto access =
        Access(int(space == Space::shared ? Access::shared_load : Access::global_load) + int(kind));
    if (self->observer->far_ahead(self->thread, access)) let_others_run(*self);
    self->observer->access(self->thread, first, bytes, access, code);
    running = self;
}

// Checks an access. Its address must be a multiple of its size, unless `anywhere` is true. (On
// stacks g++ may place variables as it likes.)
[[gnu::always_inline]] inline void access(const void* first, size_t bytes, Kind kind,
                                          bool anywhere = false,
                                          const void* code = __builtin_return_address(0)) {
    if (!running) return;
    const Space space = check(static_cast<const char*>(first), bytes, kind, code);
    if (!anywhere && reinterpret_cast<uintptr_t>(first) % bytes != 0 && space != Space::own)
        [[unlikely]]
        refuse_misaligned(bytes, kind, code);
    if (running->observer) [[unlikely]]
        observe(first, bytes, kind, space, code);
}

// Checks the copy of a struct that takes several accesses, because of its size or its alignment.
// g++ does not report the alignment. If the struct has the size of a single access, it must be
// aligned to less than its size; otherwise we assume the largest alignment that its size permits.
[[gnu::always_inline]] inline void access_parts(const void* first, size_t bytes, Kind kind) {
    const void* const code = __builtin_return_address(0);
    const size_t part = bytes <= 16 && std::has_single_bit(bytes)
                            ? std::min<size_t>(bytes, 4)
                            : std::min<size_t>(bytes & -bytes, 16);
    for (size_t i = 0; i < bytes; i += part)
        access(static_cast<const char*>(first) + i, part, kind, true, code);
}

}  // namespace

void atomic_access(const void* first, size_t bytes, const void* code) {
    access(first, bytes, Kind::atomic, false, code);
}

}  // namespace simt

// The functions that g++ calls (gcc/sanitizer.def).
using simt::Kind;
#define ACCESS(bytes)                                                                        \
    void __tsan_read##bytes(void* a) { simt::access(a, bytes, Kind::load); }                 \
    void __tsan_write##bytes(void* a) { simt::access(a, bytes, Kind::store); }               \
    void __tsan_unaligned_read##bytes(void* a) { simt::access(a, bytes, Kind::load, true); } \
    void __tsan_unaligned_write##bytes(void* a) { simt::access(a, bytes, Kind::store, true); }
extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void* a, size_t bytes) { simt::access_parts(a, bytes, Kind::load); }
void __tsan_write_range(void* a, size_t bytes) { simt::access_parts(a, bytes, Kind::store); }
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
void __tsan_init() {}
// Called by host code in the kernels' files (shared pointers, statics).
char __tsan_atomic8_load(const volatile char* a, int) {
    return __atomic_load_n(a, __ATOMIC_SEQ_CST);
}
int __tsan_atomic32_fetch_add(volatile int* a, int x, int) {
    return __atomic_fetch_add(a, x, __ATOMIC_SEQ_CST);
}
}
