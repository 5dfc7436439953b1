#include "races.h"

#include <algorithm>

namespace simt {

void Races::Found::add(const Found& other) {
    const auto location = [](const Found& f) {
        return std::tuple(f.block.z, f.block.y, f.block.x, f.threads[0], f.threads[1], f.offset);
    };
    const int64_t sum = count + other.count;
    if (count == 0 || location(other) < location(*this))
        *this = other;  // the example does not depend on which core was first
    count = sum;
}

void Races::block_begins(uint3 index, uint32_t threads, const void* shared, size_t shared_bytes) {
    rewrites_.clear();  // left by a block that failed
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
        std::ranges::transform(latest, clocks[lane], latest.begin(),
                               [](auto a, auto b) { return std::max(a, b); });
    });
    each([&](uint32_t lane) {
        clocks[lane] = latest;
        ++clocks[lane][lane];
    });
}

// The lanes of an earlier use, other than `thread` itself, whose use is not ordered before the
// thread's current step.
uint32_t Races::unordered(const Use& earlier, uint32_t thread) const {
    if (earlier.warp != thread / warp_size) return earlier.lanes;
    const auto& known = clocks_[earlier.warp][thread % warp_size];
    uint32_t lanes = earlier.lanes & ~(1u << thread % warp_size);
    for (uint32_t left = lanes; left != 0; left &= left - 1)
        if (const int lane = std::countr_zero(left); earlier.clock <= known[size_t(lane)])
            lanes &= ~(1u << lane);
    return lanes;
}

// Keeps only the uses that can still show a race: a thread's later use replaces its earlier ones,
// and two threads of different warps stand for all others, because the next thread is in another
// warp than at least one of the two.
void Races::remember(std::vector<Use>& uses, const Use& use) {
    const auto same_kind = [&](const Use& old) {
        return old.instruction.second == use.instruction.second;
    };  // atomic or not
    const Use* other = nullptr;
    for (const Use& old : uses)
        if (same_kind(old) && (use.bytes & ~old.bytes) == 0) {
            if (other && old.warp != other->warp) return;
            other = &old;
        }
    bool known = false;
    for (Use& old : uses) {
        if (!same_kind(old) || old.warp != use.warp) continue;
        if (old.instruction == use.instruction && old.clock == use.clock && old.bytes == use.bytes)
            old.lanes |= use.lanes, known = true;
        else if ((old.bytes & ~use.bytes) == 0)
            old.lanes &= ~use.lanes;
    }
    if (!known) uses.push_back(use);
    std::erase_if(uses, [](const Use& old) { return old.lanes == 0; });
}

Races::Word& Races::word(uintptr_t address) {
    const uintptr_t number = address / 4 / words_of_page;
    if (number != last_number_ || !last_page_) last_number_ = number, last_page_ = &pages_[number];
    Word& word = (*last_page_)[address / 4 % words_of_page];
    if (word.barrier != barriers_) {
        word.barrier = barriers_;
        word.reads.clear(), word.writes.clear();
    }
    return word;
}

void Races::access(uint32_t thread, const void* first, size_t bytes, Instruction instruction) {
    const Access access = instruction.second;
    // The copy of a struct reports its write, perhaps in parts, before its read, and only then does
    // both.
    const bool same_copy =
        thread == rewriter_ && !rewrites_.empty() &&
        (access == Access::shared_load || instruction == rewrites_.back().later.instruction);
    if (!same_copy) settle();
    const auto begin = reinterpret_cast<uintptr_t>(first), end = begin + bytes;
    const uint32_t warp = thread / warp_size, lane = thread % warp_size;
    Use use{instruction, clocks_[warp][lane][lane], 1u << lane, uint16_t(warp), 0};
    for (uintptr_t address = begin / 4 * 4; address < end; address += 4) {
        const uintptr_t from = std::max(address, begin) - address,
                        to = std::min(address + 4, end) - address;
        use.bytes = uint8_t((1u << to) - (1u << from));
        Word& there = word(address);
        const auto for_conflicts = [&](const std::vector<Use>& uses, auto&& f) {
            for (Use old : uses)
                if (old.bytes & use.bytes && (old.lanes = unordered(old, thread)) != 0) f(old);
        };
        for_conflicts(there.writes, [&](const Use& old) {
            const bool same_kind = old.instruction.second == access;
            if (same_kind && access == Access::shared_atomic) return;
            if (!same_kind) return report(address, old, use);
            uint32_t before;
            std::memcpy(&before, reinterpret_cast<const void*>(address), 4);
            rewrites_.push_back({address, before, old, use});
            rewriter_ = thread;
        });
        if (access != Access::shared_load)
            for_conflicts(there.reads, [&](const Use& old) { report(address, old, use); });
        remember(access == Access::shared_load ? there.reads : there.writes, use);
    }
}

void Races::report(uintptr_t word, const Use& a, const Use& b) {
    const bool in_order = a.instruction < b.instruction ||
                          (a.instruction == b.instruction && a.first_thread() < b.first_thread());
    const Use &one = in_order ? a : b, &other = in_order ? b : a;
    const uint8_t both = a.bytes & b.bytes;
    const uintptr_t address = word + uintptr_t(std::countr_zero(both));
    const bool dynamic = address >= shared_ && address < shared_ + shared_bytes_;
    all_[{one.instruction, other.instruction}].add({1,
                                                    block_,
                                                    {one.first_thread(), other.first_thread()},
                                                    dynamic ? int64_t(address - shared_) : -1});
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
