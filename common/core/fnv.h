// FNV-1a, a hash of 64 bits (Fowler, Noll, Vo): for each byte an xor and a product.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ultrascale {

// Of `bytes` bytes, going on from the hash of those before.
inline uint64_t fnv1a(const void* data, size_t bytes, uint64_t hash = 0xcbf29ce484222325u) {
    for (size_t i = 0; i < bytes; ++i)
        hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3u;
    return hash;
}

}  // namespace ultrascale
