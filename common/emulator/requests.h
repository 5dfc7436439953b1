// Groups the accesses of single threads into a warp's requests, and counts the cost of these
// (microscope.h explains the rules and units).
#pragma once

#include <array>
#include <list>
#include <map>
#include <unordered_map>
#include <vector>

#include "microscope.h"

namespace simt {

// An instruction's counts. An instruction that accesses both kinds of memory has two.
struct InstructionCounts {
    int bytes = 0;  // of one thread's access, the largest
    Counts counts;
    void add(const InstructionCounts& other);
};

class Requests {
public:
    void block_begins(uint32_t threads);
    void access(uint32_t thread, const void* first, size_t bytes, Access access, const void* code);
    void barrier();
    void lanes_met(uint32_t warp, uint32_t mask);
    void block_ends();

    std::map<std::pair<const void*, Access>, InstructionCounts> all() const;

private:
    struct Instruction {
        const void* code;
        Access access;
        bool operator==(const Instruction&) const = default;
    };
    struct Hash {
        size_t operator()(const Instruction& i) const {
            return size_t(i.code) ^ size_t(i.access) << 56;
        }
    };
    // The n-th execution of an instruction since the lanes last met.
    struct Key {
        uint32_t instruction, meeting, n;
        bool operator==(const Key&) const = default;
    };
    struct KeyHash {
        size_t operator()(const Key& key) const {
            return (size_t(key.instruction) << 40 ^ size_t(key.meeting) << 20 ^ key.n) *
                   0x9e3779b97f4a7c15u;
        }
    };
    struct Request {
        Key key;
        uint32_t lanes = 0, bytes = 0;
        std::array<uintptr_t, warp_size> address;
    };
    struct Warp {
        uint32_t lanes = 0;                             // the lanes that exist
        std::array<uint32_t, warp_size> meetings = {};  // the last one of each lane; never reset
        struct Times {
            std::array<uint32_t, warp_size> meeting = {}, n = {};
        };
        std::vector<Times> times;  // for each instruction
        std::list<Request> open;   // the oldest first
        std::unordered_map<Key, std::list<Request>::iterator, KeyHash> by_key;
    };

    void close(Warp& warp, std::list<Request>::iterator request);
    void close_all(Warp& warp);

    std::vector<Warp> warps_;
    size_t running_ = 0;  // how many warps this block has
    std::unordered_map<Instruction, uint32_t, Hash> numbers_;
    std::vector<Instruction> instructions_;
    std::vector<InstructionCounts> counts_;
};

}  // namespace simt
