#include "random.h"

#include <cmath>
#include <numbers>

#include "fnv.h"

namespace ultrascale {

Random::Random(uint64_t seed, std::string_view name) {
    unsigned char bytes[8];  // little endian
    for (int byte = 0; byte < 8; ++byte)
        bytes[byte] = static_cast<unsigned char>(seed >> (8 * byte));
    const uint64_t hash = fnv1a(name.data(), name.size(), fnv1a(bytes, sizeof bytes));
    key_ = {uint32_t(hash), uint32_t(hash >> 32)};
}

uint32_t Random::bits(uint64_t index) const { return block_bits(index / 4)[index % 4]; }

float Random::uniform(uint64_t index) const { return unit_interval(bits(index)); }

// Box-Muller: two normal numbers from two uniform ones.
static std::array<float, 2> normal_pair(float a, float b) {
    const double radius = std::sqrt(-2 * std::log(double(a))),
                 angle = 2 * std::numbers::pi * double(b);
    return {float(radius * std::cos(angle)), float(radius * std::sin(angle))};
}

float Random::normal(uint64_t index) const {
    const std::array<float, 4> u = uniforms(index / 4);  // a pair never straddles two blocks
    const size_t first = index % 4 / 2 * 2;
    return normal_pair(u[first], u[first + 1])[index % 2];
}

void Random::normals(uint64_t first, std::span<float> to) const {
    for (uint64_t i = first, end = first + to.size(); i < end;) {
        const std::array<float, 4> u = uniforms(i / 4);
        const auto a = normal_pair(u[0], u[1]), b = normal_pair(u[2], u[3]);
        const std::array<float, 4> block = {a[0], a[1], b[0], b[1]};
        do to[size_t(i - first)] = block[i % 4];
        while (++i % 4 != 0 && i < end);
    }
}

}  // namespace ultrascale
