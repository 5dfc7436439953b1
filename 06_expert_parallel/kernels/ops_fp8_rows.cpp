// Rows of numbers in 8 bits with their scales, and back.
#include <cstring>

#include "core/ops_fp8_checks.h"
#include "cpu/ops_common.h"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

namespace {

// Calls f(block, its numbers, its scale): where in `packed` they lie, with h elements a row.
template <class F>
void for_each_block(const Tensor& packed, int64_t h, int64_t blocks, const F& f) {
    const int64_t of_row = h / packed_block;
    auto* const bytes = static_cast<uint8_t*>(packed.data());
#pragma omp parallel for if (blocks * packed_block > parallel_threshold)
    for (int64_t b = 0; b < blocks; ++b) {
        uint8_t* const row = bytes + b / of_row * (h + 4 * of_row);
        f(b, row + b % of_row * packed_block, row + h + b % of_row * 4);
    }
}

}  // namespace

void pack_fp8_rows(Tensor packed, const Tensor& x) {
    const int64_t blocks = packed_blocks(packed, x);
    OpSpan span("pack_fp8_rows", 2.0 * double(x.numel()), bytes_of(packed, x));
    with_type(x.dtype(), [&]<class T>(T) {
        const T* const from = x.as<T>();
        for_each_block(packed, x.cols(), blocks, [&](int64_t b, uint8_t* to, uint8_t* scale_at) {
            const T* const block = from + b * packed_block;
            // exercise 06.7 begin: the block's scale, and its numbers divided by it and rounded
            float amax = 0;
            for (int64_t i = 0; i < packed_block; ++i)
                amax = std::max(amax, std::abs(float(block[i])));
            const float scale = scale_for(amax, formats::E4m3::largest(), false), by = 1 / scale;
            std::memcpy(scale_at, &scale, 4);
            for (int64_t i = 0; i < packed_block; ++i) to[i] = e4m3(float(block[i]) * by).bits;
            // exercise 06.7 end
        });
    });
}

void unpack_fp8_rows(Tensor x, const Tensor& packed) {
    const int64_t blocks = packed_blocks(packed, x);
    OpSpan span("unpack_fp8_rows", double(x.numel()), bytes_of(packed, x));
    with_type(x.dtype(), [&]<class T>(T) {
        T* const to = x.as<T>();
        for_each_block(packed, x.cols(), blocks, [&](int64_t b, uint8_t* from, uint8_t* scale_at) {
            float scale;
            std::memcpy(&scale, scale_at, 4);
            for (int64_t i = 0; i < packed_block; ++i)
                store(to[b * packed_block + i], formats::E4m3::decode(from[i]) * scale);
        });
    });
}

}  // namespace ultrascale::ops
