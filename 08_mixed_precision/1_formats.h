// --demo formats: what a number format can hold.
//
//     format   sign exponent mantissa      fp32 spends its bits like this:
//     fp32        1        8       23      s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
//     bf16        1        8        7      s eeeeeeee mmmmmmm            fp32's range, coarse
//     fp16        1        5       10      s eeeee mmmmmmmmmm            finer, ends at 65504
//     e4m3        1        4        3      s eeee mmm
//     e5m2        1        5        2      s eeeee mm                    the upper half of fp16
//
// Exponent bits buy range, mantissa bits buy resolution: between a power of two and the next lie
// 2^mantissa numbers, whatever the format. common/core/float_formats.h takes numbers apart; this
// file shows it. Formats of 8 bits and fewer need a scale beside them (5_delayed_scales.h): mxfp8 and nvfp4
// bring one for every 32 or 16 numbers.
//
// The playbook, "Mixed precision training"; Micikevicius et al. 2022 (arXiv 2209.05433); OCP's
// Microscaling Formats specification 1.0.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <utility>

#include "core/float_formats.h"

namespace ultrascale::mixed_precision {

// Calls visit.operator()<Format>(name) for each format, from many bits to few.
template <class Visit>
void for_each_format(Visit&& visit) {
    visit.template operator()<formats::Fp32>("fp32");
    visit.template operator()<formats::Tf32>("tf32");
    visit.template operator()<formats::Bf16>("bf16");
    visit.template operator()<formats::Fp16>("fp16");
    visit.template operator()<formats::E5m6>("e5m6");
    visit.template operator()<formats::E5m2>("e5m2");
    visit.template operator()<formats::E4m3>("e4m3");
}

// The last number on the way down, on the way up, and the step at 1.
template <class F>
struct FormatLimits {
    static constexpr double largest = F::largest(), smallest_normal = F::smallest_normal(),
                            smallest = F::smallest(), epsilon = F::epsilon();
};

// A code's bits, its three fields apart: "0 1000 101".
template <class F>
std::string bits_of_code(uint32_t code) {
    std::string bits;
    for (int i = F::bits - 1; i >= 0; --i) {
        bits += char('0' + (code >> i & 1));
        if (i == F::bits - 1 || i == F::mantissa_bits) bits += ' ';
    }
    return bits;
}

// How the code's value comes about: "+1.625 x 2^1"; "-0.25 x 2^-6 (subnormal)".
template <class F>
std::string explain_code(uint32_t code) {
    const float value = F::decode(code);
    if (std::isnan(value)) return "not a number";
    if (std::isinf(value)) return value > 0 ? "+infinity" : "-infinity";
    const uint32_t exponent = (code & F::nan) >> F::mantissa_bits;
    if (value == 0) return std::signbit(value) ? "-0" : "+0";
    const int power = exponent == 0 ? F::smallest_exponent : int(exponent) - F::bias;
    return fmt::format("{:+.9g} x 2^{}{}", std::ldexp(double(value), -power), power,
                       exponent == 0 ? " (subnormal)" : "");
}

}  // namespace ultrascale::mixed_precision
