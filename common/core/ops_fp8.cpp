#include "ops_fp8.h"

#include "ops_fp8_checks.h"

namespace ultrascale::ops {

Shape scales_shape(int64_t rows, int64_t cols, ScaleGroup group) {
    switch (group) {
        case ScaleGroup::tensor: return {1};
        case ScaleGroup::row: return {rows};
        case ScaleGroup::tile: return {blocks_of(cols), rows};
        case ScaleGroup::block: return {blocks_of(rows), blocks_of(cols)};
    }
    return {};
}

Quantised empty_quantised(int64_t rows, int64_t cols, DType dtype, ScaleGroup group,
                          Memory category) {
    return {Tensor::empty({rows, cols}, dtype, category),
            Tensor::empty(scales_shape(rows, cols, group), DType::fp32, category)};
}

float largest_of(DType dtype) {
    check(dtype == DType::e4m3 || dtype == DType::e5m2, "fp8 is e4m3 or e5m2");
    return dtype == DType::e4m3 ? formats::E4m3::largest() : formats::E5m2::largest();
}

}  // namespace ultrascale::ops
