// Counter-based random numbers: Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
//
// Element i of a stream is a pure function of (seed, name, i), so a rank that holds a shard draws exactly its shard of the
// full tensor, in any order, on any device; NumPy's Philox bit generator is another one (4x64), but twenty lines of NumPy
// draw the same numbers (tests/reference/make_reference.py does, and a test compares).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ultrascale {

// Ten rounds on a counter of four words with a key of two.
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

class Random {
public:
    // The key is FNV-1a (64 bit) over the seed's 8 bytes (little endian) and then the name's.
    Random(uint64_t seed, std::string_view name);
    // Element `index`: uniform in (0, 1], 24 bits; word index % 4 of block index / 4.
    float uniform(uint64_t index) const;
    std::array<float, 4> uniforms(uint64_t block) const;  // elements 4 block .. 4 block + 3
    // Standard normal by Box-Muller: elements 2i and 2i+1 share the uniforms 2i and 2i+1, computed in double.
    float normal(uint64_t index) const;
    uint32_t bits(uint64_t index) const;
    std::array<uint32_t, 2> key() const { return key_; }  // for a device that draws itself

private:
    std::array<uint32_t, 2> key_;
};

}  // namespace ultrascale
