#include "requests.h"

#include <algorithm>
#include <bit>

namespace simt {

namespace {

constexpr size_t most_open = 4096;  // requests of a warp that wait for more lanes

// The lanes' addresses in ascending order.
struct Sorted {
    std::array<uintptr_t, warp_size> address;
    int count = 0;
    Sorted(uint32_t lanes, const std::array<uintptr_t, warp_size>& all) {
        for (uint32_t left = lanes; left != 0; left &= left - 1)
            address[size_t(count++)] = all[size_t(std::countr_zero(left))];
        if (!std::is_sorted(address.begin(), address.begin() + count))
            std::sort(address.begin(), address.begin() + count);
    }
};

void add_sectors(Counts& counts, const Sorted& sorted, uint32_t bytes) {
    uintptr_t next_sector = 0, behind = 0, different_bytes = 0;
    for (int i = 0; i < sorted.count; ++i) {
        const uintptr_t first = sorted.address[size_t(i)], end = first + bytes;
        const uintptr_t first_sector = std::max(first / 32, next_sector),
                        end_sector = (end - 1) / 32 + 1;
        if (end_sector > first_sector)
            counts.sectors += int64_t(end_sector - first_sector), next_sector = end_sector;
        if (end > behind) different_bytes += end - std::max(first, behind), behind = end;
    }
    counts.ideal_sectors += int64_t(different_bytes + 31) / 32;
}

// The number of wavefronts for these lanes at once. Each bank needs as many as there are different
// words in it that the lanes access (for atomic operations, one per lane).
int turns(uint32_t lanes, const std::array<uintptr_t, warp_size>& all, uint32_t bytes,
          bool atomic) {
    std::array<int, 32> by_bank{};
    uintptr_t next_word = 0;
    const Sorted sorted(lanes, all);
    for (int i = 0; i < sorted.count; ++i) {
        const uintptr_t first = sorted.address[size_t(i)] / 4,
                        last = (sorted.address[size_t(i)] + bytes - 1) / 4;
        for (uintptr_t word = atomic ? first : std::max(first, next_word); word <= last; ++word)
            ++by_bank[word % 32];
        next_word = std::max(next_word, last + 1);
    }
    return *std::ranges::max_element(by_bank);
}

void add_wavefronts(Counts& counts, uint32_t lanes, const std::array<uintptr_t, warp_size>& all,
                    uint32_t bytes, bool atomic) {
    const uint32_t at_once = bytes <= 4 ? 32 : bytes <= 8 ? 16 : 8;
    const uint32_t part = at_once == 32 ? ~0u : (1u << at_once) - 1;
    for (uint32_t begin = 0; begin < 32; begin += at_once)
        if (const uint32_t active = lanes & part << begin) {
            counts.wavefronts += turns(active, all, bytes, atomic);
            ++counts.ideal_wavefronts;
        }
}

}  // namespace

Counts& Counts::operator+=(const Counts& other) {
    requests += other.requests, lanes += other.lanes, bytes_asked += other.bytes_asked;
    sectors += other.sectors, ideal_sectors += other.ideal_sectors;
    wavefronts += other.wavefronts, ideal_wavefronts += other.ideal_wavefronts;
    return *this;
}

void InstructionCounts::add(const InstructionCounts& other) {
    bytes = std::max(bytes, other.bytes);
    counts += other.counts;
}

void Requests::block_begins(uint32_t threads) {
    running_ = (threads + warp_size - 1) / warp_size;
    if (warps_.size() < running_) warps_.resize(running_);
    for (size_t i = 0; i < running_; ++i) {
        Warp& warp = warps_[i];
        warp.open.clear(), warp.by_key.clear();  // left by a block that failed
        const uint32_t lanes = threads - uint32_t(i) * warp_size;
        warp.lanes = lanes >= warp_size ? ~0u : (1u << lanes) - 1;
        lanes_met(uint32_t(i), warp.lanes);
    }
}

void Requests::barrier() {
    for (size_t i = 0; i < running_; ++i) lanes_met(uint32_t(i), warps_[i].lanes);
}

void Requests::block_ends() {
    for (size_t i = 0; i < running_; ++i) close_all(warps_[i]);
}

// Lanes that met have the same number. Two parts of a warp that met separately but equally often
// also do: a GPU may run them together.
void Requests::lanes_met(uint32_t number, uint32_t mask) {
    Warp& warp = warps_[number];
    uint32_t latest = 0;
    for (size_t lane = 0; lane < warp_size; ++lane)
        if (mask >> lane & 1) latest = std::max(latest, warp.meetings[lane]);
    for (size_t lane = 0; lane < warp_size; ++lane)
        if (mask >> lane & 1) warp.meetings[lane] = latest + 1;
    if (mask == warp.lanes) close_all(warp);
}

void Requests::access(uint32_t thread, const void* first, size_t bytes, Access access,
                      const void* code) {
    const Instruction instruction{code, access};
    const auto [entry, is_new] = numbers_.try_emplace(instruction, uint32_t(instructions_.size()));
    const uint32_t number = entry->second;
    if (is_new) {
        instructions_.push_back(instruction);
        counts_.emplace_back();
    }
    Warp& warp = warps_[thread / warp_size];
    const size_t lane = thread % warp_size;
    if (warp.times.size() <= number) warp.times.resize(number + 1);
    Warp::Times& times = warp.times[number];
    if (times.meeting[lane] != warp.meetings[lane])
        times.meeting[lane] = warp.meetings[lane], times.n[lane] = 0;
    const Key key{number, warp.meetings[lane], times.n[lane]++};
    const auto [found, is_first] = warp.by_key.try_emplace(key);
    if (is_first) {
        warp.open.emplace_back().key = key;
        found->second = std::prev(warp.open.end());
    }
    Request& request = *found->second;
    request.lanes |= 1u << lane;
    request.bytes = std::max(request.bytes, uint32_t(bytes));
    request.address[lane] = reinterpret_cast<uintptr_t>(first);
    if (request.lanes == warp.lanes)
        close(warp, found->second);
    else if (warp.open.size() > most_open)
        close(warp, warp.open.begin());
}

void Requests::close(Warp& warp, std::list<Request>::iterator request) {
    const uint32_t number = request->key.instruction, bytes = request->bytes;
    const Access access = instructions_[number].access;
    const int lanes = std::popcount(request->lanes);
    Counts counts{.requests = 1, .lanes = lanes, .bytes_asked = lanes * int64_t(bytes)};
    if (is_shared(access))
        add_wavefronts(counts, request->lanes, request->address, bytes,
                       access == Access::shared_atomic);
    else
        add_sectors(counts, Sorted(request->lanes, request->address), bytes);
    counts_[number].add({int(bytes), counts});
    warp.by_key.erase(request->key);
    warp.open.erase(request);
}

void Requests::close_all(Warp& warp) {
    while (!warp.open.empty()) close(warp, warp.open.begin());
}

std::map<std::pair<const void*, Access>, InstructionCounts> Requests::all() const {
    std::map<std::pair<const void*, Access>, InstructionCounts> sums;
    for (size_t i = 0; i < instructions_.size(); ++i)
        sums[{instructions_[i].code, instructions_[i].access}] = counts_[i];
    return sums;
}

}  // namespace simt
