#include "random.h"

#include <cmath>
#include <numbers>

namespace ultrascale {
namespace {

constexpr uint64_t fnv_offset = 0xcbf29ce484222325u, fnv_prime = 0x100000001b3u;

uint64_t fnv1a(uint64_t hash, unsigned char byte) { return (hash ^ byte) * fnv_prime; }

}  // namespace

Random::Random(uint64_t seed, std::string_view name) {
    uint64_t hash = fnv_offset;
    for (int byte = 0; byte < 8; ++byte)
        hash = fnv1a(hash, static_cast<unsigned char>(seed >> (8 * byte)));
    for (char c : name) hash = fnv1a(hash, static_cast<unsigned char>(c));
    key_ = {uint32_t(hash), uint32_t(hash >> 32)};
}

uint32_t Random::bits(uint64_t index) const { return of_block(index / 4)[index % 4]; }

float Random::uniform(uint64_t index) const { return unit_interval(bits(index)); }

float Random::normal(uint64_t index) const {
    const auto words = of_block(index / 4);  // a pair never straddles two blocks
    size_t first = index % 4 / 2 * 2;
    double radius = std::sqrt(-2 * std::log(double(unit_interval(words[first]))));
    double angle = 2 * std::numbers::pi * double(unit_interval(words[first + 1]));
    return float(radius * (index % 2 == 0 ? std::cos(angle) : std::sin(angle)));
}

}  // namespace ultrascale
