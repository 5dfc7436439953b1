// Hands out parts of large blocks of memory in the order of the host's calls, and takes them back.
// A recording needs that (recording.h): the addresses must stay valid for its replays, and a
// tensor may have the memory of one that was freed before, because the recorded operations run in
// the order in which the host asked for them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>

namespace ultrascale {

class Arena {
public:
    // `take_block` returns so many bytes of memory, which the arena keeps for good, or nullptr.
    Arena(std::function<void*(int64_t)> take_block, int64_t block_bytes)
        : take_block_(std::move(take_block)), block_bytes_(block_bytes) {}

    // The smallest free part that is large enough; nullptr if no memory is left. Aligned to 256.
    void* allocate(int64_t bytes) {
        bytes = (std::max<int64_t>(bytes, 1) + 255) / 256 * 256;
        auto best = parts_.end();
        for (auto part = parts_.begin(); part != parts_.end(); ++part)
            if (!part->second.used && part->second.bytes >= bytes &&
                (best == parts_.end() || part->second.bytes < best->second.bytes))
                best = part;
        if (best == parts_.end()) {
            const int64_t block = std::max(bytes, block_bytes_);
            auto* const begin = static_cast<char*>(take_block_(block));
            if (!begin) return nullptr;
            held_ += block;
            best = parts_.emplace(begin, Part{block, false, true}).first;
        }
        if (const int64_t left = best->second.bytes - bytes; left > 0) {
            parts_.emplace(best->first + bytes, Part{left, false, false});
            best->second.bytes = bytes;
        }
        best->second.used = true;
        used_ += bytes, most_used_ = std::max(most_used_, used_);
        return best->first;
    }
    // Returns false if the memory is not one of its parts.
    bool free(void* data) {
        auto part = parts_.find(static_cast<char*>(data));
        if (part == parts_.end() || !part->second.used) return false;
        part->second.used = false, used_ -= part->second.bytes;
        const auto join = [&](auto first, auto second) {  // neighbours in one block
            if (second == parts_.end() || second->second.begins_block || first->second.used ||
                second->second.used)
                return first;
            first->second.bytes += second->second.bytes;
            parts_.erase(second);
            return first;
        };
        join(part, std::next(part));
        if (part != parts_.begin()) join(std::prev(part), part);
        return true;
    }
    int64_t held() const { return held_; }            // bytes of all blocks
    int64_t most_used() const { return most_used_; }  // the most bytes handed out at a time

private:
    struct Part {
        int64_t bytes;
        bool used, begins_block;
    };
    std::function<void*(int64_t)> take_block_;
    int64_t block_bytes_, held_ = 0, used_ = 0, most_used_ = 0;
    std::map<char*, Part> parts_;  // by address; they cover the blocks
};

}  // namespace ultrascale
