// Rounds blocks of a matrix, one after the other.
#include "cpu/ops_common.h"
#include "ops_blocks_rounding.h"

namespace ultrascale::ops {

void round_blocks(Tensor y, const Tensor& x, const BlockRounding& how, Tensor tensor_scale) {
    check_blocks(y, x, how, tensor_scale);
    const int64_t R = x.rows(), C = x.cols();
    const OpSpan span("round_blocks", 2.0 * double(R * C), bytes_of(y, x));
    with_type(x.dtype(), [&]<class T>(T) {
        with_blocks(how, [&]<class Block>() {
            const T* const from = x.as<T>();
            bf16* const to = y.as<bf16>();
            const int64_t n = Block::count(R, C);
            const auto block = [&](int64_t i) {
                return Block(i, R, C, how, [&](int64_t at) { return float(from[at]); });
            };
            uint32_t amax = 0;
            if (tensor_scale) {
#pragma omp parallel for reduction(max : amax) if (R * C > parallel_threshold)
                for (int64_t i = 0; i < n; ++i) amax = std::max(amax, block(i).amax());
                *tensor_scale.as<float>() = nvfp4_scale(amax);
            }
#pragma omp parallel for if (R * C > parallel_threshold)
            for (int64_t i = 0; i < n; ++i)
                block(i).round(how, amax, [&](int64_t at, float v) { store(to[at], v); });
        });
    });
}

}  // namespace ultrascale::ops
