// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as
// easy as 1, 2, 3").
//
// Element i of a stream is a pure function of (seed, name, i), so a rank that holds a shard draws
// exactly its shard of the full tensor, in any order, on any device. (NumPy's own Philox generator
// is a different variant, 4x64; tests/reference/make_reference.py draws our numbers in twenty lines
// of NumPy, and a test compares them.)
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace ultrascale {

// Ten rounds on a counter of four words with a key of two words. (It is constexpr because kernels
// call it, too.)
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> x,
                                             std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t(0xD2511F53u) * x[0], b = uint64_t(0xCD9E8D57u) * x[2];
        x = {uint32_t(b >> 32) ^ x[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ x[3] ^ key[1],
             uint32_t(a)};
        key[0] += 0x9E3779B9u;  // the golden ratio
        key[1] += 0xBB67AE85u;  // sqrt(3) - 1
    }
    return x;
}

class Random {
public:
    // The key is FNV-1a (64 bit) over the seed's 8 bytes (little endian) and then the name's.
    Random(uint64_t seed, std::string_view name);
    // Element `index`: uniform in (0, 1], 24 bits, from word index % 4 of block index / 4.
    float uniform(uint64_t index) const;
    constexpr std::array<float, 4> uniforms(
        uint64_t block) const {  // elements 4 block .. 4 block + 3
        const std::array<uint32_t, 4> words = block_bits(block);
        return {unit_interval(words[0]), unit_interval(words[1]), unit_interval(words[2]),
                unit_interval(words[3])};
    }
    // Standard normal by Box-Muller: elements 2i and 2i+1 share the uniforms 2i and 2i+1, computed
    // in double.
    float normal(uint64_t index) const;
    // Writes elements first, first + 1, ...: the same numbers as normal(), in half the time.
    void normals(uint64_t first, std::span<float> to) const;
    uint32_t bits(uint64_t index) const;
    // The bits of elements 4 block .. 4 block + 3.
    constexpr std::array<uint32_t, 4> block_bits(uint64_t block) const {
        return philox4x32({uint32_t(block), uint32_t(block >> 32), 0, 0}, key_);
    }

private:
    // 24 bits in (0, 1]: never zero, so that its logarithm exists.
    static constexpr float unit_interval(uint32_t word) {
        return float((word >> 8) + 1) * 0x1p-24f;
    }

    std::array<uint32_t, 2> key_;
};

}  // namespace ultrascale
