// Races in a block's shared memory (microscope.h says what counts as one).
//
// For each 4-byte word it records which threads have read and written it since the last
// __syncthreads, and compares each new access with these. Vector clocks record the order that
// __syncwarp creates: clock[a][b] is the last step of lane b that happened before lane a's current
// step, where a step lies between two __syncwarp of a lane. (Lamport 1978, "Time, Clocks, and the
// Ordering of Events"; Flanagan and Freund 2009, "FastTrack".)
#pragma once

#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "observer.h"

namespace simt {

class Races {
public:
    using Instruction = std::pair<const void*, Access>;
    struct Found {
        int64_t count = 0;
        uint3 block{};
        uint32_t threads[2] = {};  // in the order of the instructions
        int64_t offset = 0;        // as in Race
        void add(const Found& other);
    };
    using All =
        std::map<std::pair<Instruction, Instruction>, Found>;  // the smaller instruction first

    void block_begins(uint3 index, uint32_t threads, const void* shared, size_t shared_bytes);
    void access(uint32_t thread, const void* first, size_t bytes, Instruction instruction);
    void barrier();
    void lanes_met(uint32_t warp, uint32_t mask);  // at a __syncwarp
    void block_ends() { settle(); }

    const All& all() const { return all_; }

private:
    // An access by lanes of a warp that made the same access in the same step.
    struct Use {
        Instruction instruction;
        uint32_t clock;  // the step
        uint32_t lanes;
        uint16_t warp;
        uint8_t bytes;  // the bytes of the word, as a mask

        uint32_t first_thread() const {
            return warp * warp_size + uint32_t(std::countr_zero(lanes));
        }
    };
    struct Word {
        uint64_t barrier = 0;  // the uses happened since this one
        std::vector<Use> reads, writes;
    };
    // A write over another thread's write. It is a race unless it leaves the same bytes, which is
    // known only after the write.
    struct Rewrite {
        uintptr_t word;
        uint32_t before;
        Use earlier, later;
    };
    using Clocks = std::array<std::array<uint32_t, warp_size>, warp_size>;

    uint32_t unordered(const Use& earlier, uint32_t thread) const;
    Word& word(uintptr_t address);
    static void remember(std::vector<Use>& uses, const Use& use);
    void report(uintptr_t word, const Use& a, const Use& b);
    void settle();

    static constexpr size_t words_of_page = 64;
    using Page = std::array<Word, words_of_page>;
    std::unordered_map<uintptr_t, Page> pages_;
    uintptr_t last_number_ = 0;
    Page* last_page_ = nullptr;
    std::vector<Clocks> clocks_;  // of each warp
    uint64_t barriers_ = 0;       // counted over all blocks
    std::vector<Rewrite> rewrites_;
    uint32_t rewriter_ = 0;
    uint3 block_{};
    uintptr_t shared_ = 0;
    size_t shared_bytes_ = 0;
    All all_;
};

}  // namespace simt
