#include "random.h"

#include <cmath>
#include <numbers>

namespace ultrascale {
namespace {

constexpr uint64_t fnv_offset = 0xcbf29ce484222325u, fnv_prime = 0x100000001b3u;

uint64_t fnv1a(uint64_t hash, unsigned char byte) { return (hash ^ byte) * fnv_prime; }

// 24 bits in (0, 1]: never zero, so that its logarithm exists.
float unit_interval(uint32_t word) { return float((word >> 8) + 1) * 0x1p-24f; }

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> x, std::array<uint32_t, 2> key) {
    for (int round = 0; round < 10; ++round) {
        uint64_t a = uint64_t(0xD2511F53u) * x[0], b = uint64_t(0xCD9E8D57u) * x[2];
        x = {uint32_t(b >> 32) ^ x[1] ^ key[0], uint32_t(b), uint32_t(a >> 32) ^ x[3] ^ key[1], uint32_t(a)};
        key[0] += 0x9E3779B9u;  // the golden ratio
        key[1] += 0xBB67AE85u;  // sqrt(3) - 1
    }
    return x;
}

Random::Random(uint64_t seed, std::string_view name) {
    uint64_t hash = fnv_offset;
    for (int byte = 0; byte < 8; ++byte) hash = fnv1a(hash, static_cast<unsigned char>(seed >> (8 * byte)));
    for (char c : name) hash = fnv1a(hash, static_cast<unsigned char>(c));
    key_ = {uint32_t(hash), uint32_t(hash >> 32)};
}

uint32_t Random::bits(uint64_t index) const {
    uint64_t block = index / 4;
    return philox4x32({uint32_t(block), uint32_t(block >> 32), 0, 0}, key_)[index % 4];
}

float Random::uniform(uint64_t index) const { return unit_interval(bits(index)); }

std::array<float, 4> Random::uniforms(uint64_t block) const {
    std::array<float, 4> four;
    const auto words = philox4x32({uint32_t(block), uint32_t(block >> 32), 0, 0}, key_);
    for (size_t i = 0; i < 4; ++i) four[i] = unit_interval(words[i]);
    return four;
}

float Random::normal(uint64_t index) const {
    uint64_t block = index / 4;  // a pair never straddles two blocks
    auto words = philox4x32({uint32_t(block), uint32_t(block >> 32), 0, 0}, key_);
    size_t first = index % 4 / 2 * 2;
    double radius = std::sqrt(-2 * std::log(double(unit_interval(words[first]))));
    double angle = 2 * std::numbers::pi * double(unit_interval(words[first + 1]));
    return float(radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

}  // namespace ultrascale
