// Packs eight numbers of 12 bits into three words of 32.
#include "cpu/ops_fp8.h"
#include "ops_quantised_checks.h"

namespace ultrascale::ops {

void pack_e5m6(Tensor packed, Tensor scales, const Tensor& x) {
    const int64_t R = x.rows(), C = x.cols();
    check_e5m6(packed, scales, R, C);
    OpSpan span("pack_e5m6", 2.0 * double(R * C), bytes_of(packed, scales, x));
    const Tensor wide = widened(x);
    const float* values = wide.as<float>();
    float* scale = scales.as<float>();
    int32_t* words = packed.as<int32_t>();
#pragma omp parallel for if (R * C > parallel_threshold)
    for (int64_t r = 0; r < R; ++r)
        for (int64_t j = 0; j < C / scale_block; ++j) {
            const float* from = values + r * C + j * scale_block;
            float amax = 0;
            for (int64_t i = 0; i < scale_block; ++i) amax = larger(std::abs(from[i]), amax);
            const float s = scale_for(amax, formats::E5m6::largest(), true);
            scale[j * R + r] = s;
            for (int64_t i = 0; i < scale_block; i += 8) {
                float eight[8];
                std::copy_n(from + i, 8, eight);
                int32_t three[3];
                pack_eight(three, eight, 1.0f / s);
                std::copy_n(three, 3, words + (r * C + j * scale_block + i) / 8 * 3);
            }
        }
}

void unpack_e5m6(Tensor x, const Tensor& packed, const Tensor& scales) {
    const int64_t R = x.rows(), C = x.cols();
    check_e5m6(packed, scales, R, C);
    OpSpan span("unpack_e5m6", double(R * C), bytes_of(packed, scales, x));
    const float* scale = scales.as<float>();
    const int32_t* words = packed.as<int32_t>();
    with_type(x.dtype(), [&]<class T>(T) {
        T* out = x.as<T>();
#pragma omp parallel for if (R * C > parallel_threshold)
        for (int64_t r = 0; r < R; ++r)
            for (int64_t c = 0; c < C; c += 8) {
                int32_t three[3];
                std::copy_n(words + (r * C + c) / 8 * 3, 3, three);
                float eight[8];
                unpack_eight(eight, three, scale[c / scale_block * R + r]);
                for (int64_t i = 0; i < 8; ++i) store(out[r * C + c + i], eight[i]);
            }
    });
}

}  // namespace ultrascale::ops
