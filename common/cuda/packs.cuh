// Vectorized accesses: several elements at once. The widest access, 16 bytes, gives a kernel the
// most bytes in flight per instruction.
#pragma once

#include "l2.cuh"

namespace ultrascale {

// n elements that one access loads or stores; n * sizeof(T) is at most 16.
template <class T, int n>
struct alignas(n * sizeof(T)) Pack {
    T x[n];
};
template <int n, class T>
__device__ Pack<T, n> load(const T* from) {
    return *reinterpret_cast<const Pack<T, n>*>(from);
}
template <int n, class T>
__device__ void store(T* to, const Pack<T, n>& pack) {
    *reinterpret_cast<Pack<T, n>*>(to) = pack;
}

// A load and a store of data that will not be read again soon (l2.cuh). The store does not evict
// data from L2 that is still needed.
template <int n, class T>
__device__ Pack<T, n> load_once(const Pack<T, n>* from) {
    if constexpr (sizeof *from == 16)
        return load_evict_last(from);
    else
        return *from;
}
template <int n, class T>  // by value, cross-entropy would have 7 % more instructions
__device__ void store_once(T* to, const Pack<T, n>& pack) {
    if constexpr (sizeof pack == 16)
        __stcs(reinterpret_cast<uint4*>(to), *reinterpret_cast<const uint4*>(&pack));
    else
        store(to, pack);
}
template <int n, class T>
__device__ void store_once(Pack<T, n>* to, Pack<T, n> pack) {
    store_once(to->x, pack);
}

}  // namespace ultrascale
