#include "races.h"

#include <algorithm>

namespace simt {

void Races::Found::add(const Found& other) {
    const auto place = [](const Found& f) { return std::tuple(f.block.z, f.block.y, f.block.x, f.threads[0], f.threads[1], f.offset); };
    const int64_t sum = count + other.count;
    if (count == 0 || place(other) < place(*this)) *this = other;  // the same example, whichever core was first
    count = sum;
}

void Races::block_begins(uint3 index, uint32_t threads, const void* shared, size_t shared_bytes) {
    rewrites_.clear();  // of a block that failed
    ++barriers_;
    block_ = index, shared_ = reinterpret_cast<uintptr_t>(shared), shared_bytes_ = shared_bytes;
    clocks_.assign((threads + warp_size - 1) / warp_size, Clocks{});
    for (Clocks& clocks : clocks_)
        for (size_t lane = 0; lane < warp_size; ++lane) clocks[lane][lane] = 1;
}

void Races::barrier() {
    settle();
    ++barriers_;
}

void Races::lanes_met(uint32_t warp, uint32_t mask) {
    settle();
    Clocks& clocks = clocks_[warp];
    std::array<uint32_t, warp_size> latest{};
    const auto each = [&](auto&& f) {
        for (uint32_t lane = 0; lane < warp_size; ++lane)
            if (mask >> lane & 1) f(lane);
    };
    each([&](uint32_t lane) {
        std::ranges::transform(latest, clocks[lane], latest.begin(), [](auto a, auto b) { return std::max(a, b); });
    });
    each([&](uint32_t lane) {
        clocks[lane] = latest;
        ++clocks[lane][lane];
    });
}

bool Races::ordered(const Use& earlier, uint32_t thread) const {
    if (earlier.thread == thread) return true;
    if (earlier.thread / warp_size != thread / warp_size) return false;
    return earlier.clock <= clocks_[thread / warp_size][thread % warp_size][earlier.thread % warp_size];
}

// Only what can still tell a race: a thread's later use stands for its earlier ones, and two threads of different warps stand for all
// others, because whoever comes next is in another warp than one of the two.
void Races::remember(std::vector<Use>& uses, const Use& use) {
    const Use* other = nullptr;
    for (Use& old : uses) {
        if (old.instruction.second != use.instruction.second) continue;  // atomic or not
        if (old.thread == use.thread && (old.bytes & ~use.bytes) == 0) {
            old = use;
            return;
        }
        if ((use.bytes & ~old.bytes) != 0) continue;
        if (other && old.thread / warp_size != other->thread / warp_size) return;
        other = &old;
    }
    uses.push_back(use);
}

void Races::access(uint32_t thread, const void* first, size_t bytes, Instruction instruction) {
    const Access access = instruction.second;
    // A copy of a struct tells of its write before its read, and does both after that.
    if (thread != rewriter_ || access != Access::shared_load) settle();
    const auto begin = reinterpret_cast<uintptr_t>(first), end = begin + bytes;
    Use use{instruction, clocks_[thread / warp_size][thread % warp_size][thread % warp_size], uint16_t(thread), 0};
    for (uintptr_t address = begin / 4 * 4; address < end; address += 4) {
        const uintptr_t from = std::max(address, begin) - address, to = std::min(address + 4, end) - address;
        use.bytes = uint8_t((1u << to) - (1u << from));
        Word& word = words_[address];
        if (word.barrier != barriers_) {
            word.barrier = barriers_;
            word.reads.clear(), word.writes.clear();
        }
        const auto conflicts = [&](const Use& old) { return (old.bytes & use.bytes) && !ordered(old, thread); };
        for (const Use& old : word.writes) {
            if (!conflicts(old) || (access == Access::shared_atomic && old.instruction.second == access)) continue;
            if (access == Access::shared_store && old.instruction.second == access) {
                uint32_t before;
                std::memcpy(&before, reinterpret_cast<const void*>(address), 4);
                rewrites_.push_back({address, before, old, use});
                rewriter_ = thread;
            } else {
                report(address, old, use);
            }
        }
        if (access != Access::shared_load)
            for (const Use& old : word.reads)
                if (conflicts(old)) report(address, old, use);
        remember(access == Access::shared_load ? word.reads : word.writes, use);
    }
}

void Races::report(uintptr_t word, const Use& a, const Use& b) {
    const bool in_order = a.instruction < b.instruction || (a.instruction == b.instruction && a.thread < b.thread);
    const Use &one = in_order ? a : b, &other = in_order ? b : a;
    const uint8_t both = a.bytes & b.bytes;
    const uintptr_t address = word + uintptr_t(std::countr_zero(both));
    const bool dynamic = address >= shared_ && address < shared_ + shared_bytes_;
    all_[{one.instruction, other.instruction}].add({1, block_, {one.thread, other.thread}, dynamic ? int64_t(address - shared_) : -1});
}

void Races::settle() {
    for (const Rewrite& rewrite : rewrites_) {
        uint32_t now;
        std::memcpy(&now, reinterpret_cast<const void*>(rewrite.word), 4);
        const int both = rewrite.earlier.bytes & rewrite.later.bytes;
        const auto* old_bytes = reinterpret_cast<const char*>(&rewrite.before);
        const auto* new_bytes = reinterpret_cast<const char*>(&now);
        for (int i = 0; i < 4; ++i)
            if (both >> i & 1 && old_bytes[i] != new_bytes[i]) {
                report(rewrite.word, rewrite.earlier, rewrite.later);
                break;
            }
    }
    rewrites_.clear();
}

}  // namespace simt
