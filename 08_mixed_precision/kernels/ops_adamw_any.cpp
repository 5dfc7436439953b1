// AdamW with states of any dtype and scales, on the host's threads: blocks are widened to fp32,
// updated, and rounded. If there are scales, every block is computed twice: the first time to find
// the magnitudes of the new numbers.
#include "core/ops_fp8_checks.h"
#include "cpu/ops_common.h"
#include "ops_adamw_any_checks.h"

namespace ultrascale::ops {

namespace {

constexpr int64_t block = 1024;

float scale_of(const Tensor& scale) { return scale ? *scale.as<float>() : 1; }

void widen(float* to, const Tensor& from, float scale, int64_t begin, int64_t n) {
    with_any_float(from.dtype(), [&]<class T>(T) {
        const T* x = from.as<T>() + begin;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) to[i] = float(x[i]) * scale;
    });
}
void narrow(const Tensor& to, const float* from, float scale, int64_t begin, int64_t n) {
    const float factor = 1 / scale;
    with_any_float(to.dtype(), [&]<class T>(T) {
        T* x = to.as<T>() + begin;
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) store(x[i], from[i] * factor);
    });
}

// Rounds elements begin .. begin + n - 1 with the random bits first + begin .. of the stream.
template <class Format, class Bits>
void round_stochastically(Bits* to, const float* from, float scale, const AdamWAnyItem& item,
                          int64_t begin, int64_t n) {
    const uint64_t first = item.first + uint64_t(begin);
    const float factor = 1 / scale;
    std::array<uint32_t, 4> words = {};
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t index = first + uint64_t(i);
        if (i == 0 || index % 4 == 0) words = item.rounding->block_bits(index / 4);
        to[begin + i] =
            Bits(Format::encode_stochastic(from[i] * factor, words[index % 4], Overflow::saturate));
    }
}
void narrow_value(const AdamWAnyItem& item, const float* from, float scale, int64_t begin,
                  int64_t n) {
    if (!item.rounding) return narrow(item.value, from, scale, begin, n);
    auto* const sixteen = static_cast<uint16_t*>(item.value.data());
    auto* const eight = static_cast<uint8_t*>(item.value.data());
    switch (item.value.dtype()) {
        case DType::bf16:
            return round_stochastically<formats::Bf16>(sixteen, from, scale, item, begin, n);
        case DType::fp16:
            return round_stochastically<formats::Fp16>(sixteen, from, scale, item, begin, n);
        case DType::e4m3:
            return round_stochastically<formats::E4m3>(eight, from, scale, item, begin, n);
        case DType::e5m2:
            return round_stochastically<formats::E5m2>(eight, from, scale, item, begin, n);
        default: check(false, "adamw: values of 16 or 8 bits are rounded stochastically");
    }
}

// Rounds m (is_v = 0) or v (is_v = 1).
template <class Format>
void round_state(const Tensor& to, const float* from, float scale, const AdamWAnyItem& item,
                 uint64_t is_v, int64_t begin, int64_t n) {
    uint8_t* const x = static_cast<uint8_t*>(to.data()) + begin;
    const float factor = 1 / scale;
    for (int64_t i = 0; i < n; ++i) {
        const uint64_t index = 2 * (item.first + uint64_t(begin + i)) + is_v;
        const uint32_t random = item.state_rounding->bits(index);
        x[i] = uint8_t(Format::encode_stochastic(from[i] * factor, random, Overflow::saturate));
    }
}
void narrow_state(const Tensor& to, const float* from, float scale, const AdamWAnyItem& item,
                  uint64_t is_v, int64_t begin, int64_t n) {
    if (item.state_rounding && to.dtype() == DType::e4m3)
        return round_state<formats::E4m3>(to, from, scale, item, is_v, begin, n);
    if (item.state_rounding && to.dtype() == DType::e5m2)
        return round_state<formats::E5m2>(to, from, scale, item, is_v, begin, n);
    narrow(to, from, scale, begin, n);
}

struct Block {
    float master[block], m[block], v[block], gradient[block];
};
// Computes the new numbers of n elements from `begin` on.
void update(Block& b, const AdamWAnyItem& item, const AdamWFactors& f, int64_t begin, int64_t n) {
    widen(b.master, item.master, scale_of(item.master_scale), begin, n);
    widen(b.m, item.m, scale_of(item.m_scale), begin, n);
    widen(b.v, item.v, scale_of(item.v_scale), begin, n);
    widen(b.gradient, item.gradient, scale_of(item.gradient_scale), begin, n);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) {
        const float g = b.gradient[i] * f.clip;
        b.m[i] = b.m[i] + (1.0f - f.beta1) * (g - b.m[i]);
        b.v[i] = f.beta2 * b.v[i] + (1.0f - f.beta2) * g * g;
        b.master[i] = b.master[i] * f.decay -
                      f.step_size * b.m[i] / (std::sqrt(b.v[i]) * f.root_correction + f.eps);
    }
}

float largest_of(const float* x, int64_t n) {
    float largest = 0;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; ++i) largest = std::abs(x[i]) > largest ? std::abs(x[i]) : largest;
    return largest;
}

template <class F>
void for_each_block(int64_t count, const F& f) {
#pragma omp parallel for if (count > parallel_threshold)
    for (int64_t begin = 0; begin < count; begin += block) f(begin, std::min(block, count - begin));
}

void update(const AdamWAnyItem& item, const AdamWFactors& factors) {
    const int64_t count = item.master.numel(), blocks = (count + block - 1) / block;
    const auto all = written(item);
    std::array<float, adamw_written> scales;
    scales.fill(1);
    if (has_scales(item)) {
        std::vector<std::array<float, 3>> magnitudes(static_cast<size_t>(blocks));
        for_each_block(count, [&](int64_t begin, int64_t n) {
            Block b;
            update(b, item, factors, begin, n);
            magnitudes[size_t(begin / block)] = {largest_of(b.master, n), largest_of(b.m, n),
                                                 largest_of(b.v, n)};
        });
        std::array<float, 3> amax = {};
        for (const auto& block_amax : magnitudes)
            for (size_t i = 0; i < 3; ++i) amax[i] = std::max(amax[i], block_amax[i]);
        for (size_t i = 0; i < all.size(); ++i)  // the value is the master, rounded
            if (*all[i].scale)
                scales[i] = scale_for(amax[i == 0 ? 0 : i - 1],
                                      largest_scaled(all[i].tensor->dtype()), true);
    }
    for_each_block(count, [&](int64_t begin, int64_t n) {
        Block b;
        update(b, item, factors, begin, n);
        if (item.master.data() != item.value.data())
            narrow(item.master, b.master, scales[1], begin, n);
        narrow_state(item.m, b.m, scales[2], item, 0, begin, n);
        const float least = smallest_second_moment(item.v.dtype()) * scales[3];
        for (int64_t i = 0; i < n; ++i) b.v[i] = b.v[i] > 0 ? std::max(b.v[i], least) : b.v[i];
        narrow_state(item.v, b.v, scales[3], item, 1, begin, n);
        narrow_value(item, b.master, scales[0], begin, n);
    });
    for (size_t i = 0; i < all.size(); ++i)
        if (*all[i].scale) *all[i].scale->as<float>() = scales[i];
}

}  // namespace

void adamw_any(const std::vector<AdamWAnyItem>& items, const Tensor& squared_norm,
               const AdamWSettings& s, const Tensor& skip) {
    if (!skip)
        if (const auto plain = plain_items(items, DType::fp32); !plain.empty())
            return adamw(plain, squared_norm, s);
    const AdamWCost cost = adamw_any_cost(items, s);
    OpSpan span("adamw", cost.flops, cost.bytes);
    if (skip && *skip.as<int32_t>() != 0) return;
    const double clip = clip_factor(squared_norm, s.max_norm);
    for (const AdamWAnyItem& item : items) update(item, adamw_factors(s, item.weight_decay, clip));
}

}  // namespace ultrascale::ops
