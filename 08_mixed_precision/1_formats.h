// How a number is encoded, and what a format can hold (--demo formats shows it).
//
//     format   sign exponent mantissa      fp32 spends its bits like this:
//     fp32        1        8       23      s eeeeeeee mmmmmmmmmmmmmmmmmmmmmmm
//     bf16        1        8        7      s eeeeeeee mmmmmmm            fp32's range, coarse
//     fp16        1        5       10      s eeeee mmmmmmmmmm            finer, ends at 65504
//     e4m3        1        4        3      s eeee mmm
//     e5m2        1        5        2      s eeeee mm                    the upper half of fp16
//
// Exponent bits buy range, mantissa bits buy resolution: from a power of two to the next there are
// 2^mantissa numbers, whatever the format. 0.1 in e4m3, by hand:
//
//     0.1 = 1.6 x 2^-4        a sign, a significand from 1 up to 2, a power of two
//     exponent  -4 + 7 = 3    in 4 bits, with the format's bias added, so that it is not negative
//     mantissa  0.6 x 8 = 4.8, rounded to 5 of 8
//     code      0 0011 101    stands for 1.625 x 2^-4 = 0.1016
//
// The exponent field 0 is for numbers below the least power of two. They have no leading 1 (they
// are subnormal), and end in 0. The largest codes are infinity and NaN; e4m3 has only a NaN.
//
// common/core/float_formats.h encodes and decodes numbers, once for all formats. Codes are in the
// order of the numbers, so rounding is integer arithmetic. This file takes codes apart. Formats of
// 8 bits and fewer need a scale (2_plain_fp8_linear.h): mxfp8 has one for 32 numbers, nvfp4 for 16.
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

// The format's largest number, its smallest normal and subnormal ones, and the step from 1 up.
template <class F>
struct FormatLimits {
    static constexpr double largest = F::largest(), smallest_normal = F::smallest_normal(),
                            smallest = F::smallest(), epsilon = F::epsilon();
};

// Returns a code's bits with its three fields apart: "0 1000 101".
template <class F>
std::string bits_of_code(uint32_t code) {
    std::string bits;
    for (int i = F::bits - 1; i >= 0; --i) {
        bits += char('0' + (code >> i & 1));
        if (i == F::bits - 1 || i == F::mantissa_bits) bits += ' ';
    }
    return bits;
}

// Explains a code's value: "+1.625 x 2^1"; "-0.25 x 2^-6 (subnormal)".
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
