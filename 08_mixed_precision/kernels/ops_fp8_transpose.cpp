// The transpose of a matrix of 8-bit numbers, and scales from known magnitudes.
#include "cpu/ops_fp8.h"
#include "ops_quantised_checks.h"

namespace ultrascale::ops {

void transpose_quantised(const Quantised& to, const Quantised& from, const Scaling& scaling) {
    const int64_t R = from.values.rows(), C = from.values.cols();
    check_quantise(from, to, R, C, scaling, {});
    OpSpan span("transpose_quantised", 2.0 * double(R * C), bytes_in(to) + bytes_in(from));
    if (scaling.group == ScaleGroup::row || scaling.group == ScaleGroup::tile) {
        const Tensor x = Tensor::empty({R, C}, DType::fp32, Memory::workspace);
        dequantise_floats(x, from, scaling.group);
        return quantise_floats({}, to, x, scaling, {});
    }
    with_fp8(from.values.dtype(),
             [&]<class T>(T) { transpose(to.values.as<T>(), from.values.as<T>(), R, C); });
    if (to.scales.data() != from.scales.data())
        transpose(to.scales.as<float>(), from.scales.as<float>(), from.scales.rows(),
                  from.scales.cols());
}

void scale_of_amax(Tensor scale, const Tensor& amax, DType dtype, bool powers_of_two) {
    OpSpan span("scale_of_amax", 0, bytes_of(scale, amax));
    *scale.as<float>() = scale_for(*amax.as<float>(), largest_of(dtype), powers_of_two);
}

void delayed_scale(Tensor scale, Tensor history, const Tensor& amax, int64_t step, DType dtype,
                   int margin) {
    OpSpan span("delayed_scale", 0, bytes_of(scale, history, amax));
    float* kept = history.as<float>();
    const int64_t n = history.numel();
    kept[step % n] = *amax.as<float>();
    float largest = 0;
    for (int64_t i = 0; i < n; ++i)
        if (std::isfinite(kept[i])) largest = larger(largest, kept[i]);
    *scale.as<float>() = delayed_scale_of(largest, largest_of(dtype), margin);
}

}  // namespace ultrascale::ops
