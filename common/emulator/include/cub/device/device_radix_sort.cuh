// Stands in for CUB's header where kernels run on the CPU: a stable sort of pairs by some bits of
// their keys.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "emulator/include/cuda_runtime.h"

namespace cub {

struct DeviceRadixSort {
    // Like CUB's: without scratch it only reports how much it needs.
    template <class Key, class Value>
    static cudaError_t SortPairs(void* scratch, size_t& scratch_bytes, const Key* keys,
                                 Key* sorted_keys, const Value* values, Value* sorted_values,
                                 int count, int begin_bit, int end_bit, cudaStream_t) {
        if (!scratch) return scratch_bytes = 1, cudaSuccess;
        const auto digits = [&](int i) {
            return end_bit - begin_bit >= int(8 * sizeof(Key))
                       ? keys[i]
                       : keys[i] >> begin_bit & ((Key(1) << (end_bit - begin_bit)) - 1);
        };
        std::vector<int> order(static_cast<size_t>(count));
        std::iota(order.begin(), order.end(), 0);
        std::stable_sort(order.begin(), order.end(),
                         [&](int a, int b) { return digits(a) < digits(b); });
        for (int i = 0; i < count; ++i)
            sorted_keys[i] = keys[order[size_t(i)]], sorted_values[i] = values[order[size_t(i)]];
        return cudaSuccess;
    }
};

}  // namespace cub
