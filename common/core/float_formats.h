// Floating-point formats with fewer bits than fp32: which numbers they can hold, and how fp32
// numbers are rounded to them. One template serves all of them, on the host and in kernels.
//
//     sign | exponent bits | mantissa bits        value
//     -----+---------------+--------------        ------------------------------------------------
//      s   | 0             | m                    (-1)^s 2^(1 - bias) 0.m        subnormal, or zero
//      s   | e             | m                    (-1)^s 2^(e - bias) 1.m        bias = 2^(E-1) - 1
//      s   | all ones      | 0, else              infinity, NaN (IEEE 754)
//      s   | all ones      | all ones             NaN; all other m are numbers (Codes::one_nan)
//      s   | all ones      | m                    a number, as of any exponent (Codes::numbers)
//
// The codes of positive numbers are in the order of the numbers: the next larger number has the
// next code, even from the largest subnormal to the smallest normal number, and from a full
// mantissa to the next exponent. So rounding is integer arithmetic on the code, and a carry needs
// no special case.
//
// Micikevicius et al. 2022, FP8 Formats for Deep Learning (arXiv 2209.05433); e5m6: DeepSeek-AI
// 2024, DeepSeek-V3 Technical Report, section 3.3.3; e2m1: OCP's Microscaling Formats 1.0.
#pragma once

#include <bit>
#include <cstdint>

namespace ultrascale {

// How a number that is too large for the format is rounded. saturate: to the largest number;
// infinite: to infinity, or to NaN if the format has no infinity. NaN stays NaN.
enum class Overflow { saturate, infinite };

// What the last exponent's codes stand for. ieee: infinity and NaN. one_nan: only the very last
// code is NaN, and there is no infinity (OCP's e4m3, "fn"). numbers: there is neither, and NaN is
// rounded as if it were too large (e2m1).
enum class Codes { ieee, one_nan, numbers };

template <int exponent, int mantissa, Codes codes = Codes::ieee>
struct FloatFormat {
    static constexpr int exponent_bits = exponent, mantissa_bits = mantissa,
                         bits = 1 + exponent + mantissa, bias = (1 << (exponent - 1)) - 1,
                         smallest_exponent = 1 - bias;
    // Codes without the sign. NaN is written with all ones, as NVIDIA's conversions write it.
    static constexpr uint32_t nan = (uint32_t(1) << (exponent + mantissa)) - 1,
                              infinity = nan >> mantissa << mantissa,  // if the format has it
        sign = uint32_t(1) << (bits - 1);
    static constexpr uint32_t largest_code = codes == Codes::ieee      ? infinity - 1
                                             : codes == Codes::one_nan ? nan - 1
                                                                       : nan;

    // The value of a code; exact.
    static constexpr float decode(uint32_t code) {
        const uint32_t magnitude = code & nan, top = code & sign ? 0x80000000u : 0;
        const uint32_t exponent_field = magnitude >> mantissa;
        if (magnitude > largest_code)
            return std::bit_cast<float>(
                top | (codes == Codes::ieee && magnitude == infinity ? 0x7f800000u : 0x7fffffffu));
        if constexpr (exponent == 8)  // fp32's own exponent, subnormals included
            return std::bit_cast<float>(top | magnitude << (23 - mantissa));
        if (exponent_field == 0) {  // 0.m 2^(1 - bias) = m 2^(1 - bias - mantissa)
            constexpr float unit =
                std::bit_cast<float>(uint32_t(127 + smallest_exponent - mantissa) << 23);
            const float value = float(magnitude) * unit;
            return top ? -value : value;
        }
        return std::bit_cast<float>(
            top | ((magnitude << (23 - mantissa)) + (uint32_t(127 - bias) << 23)));
    }

    static constexpr float largest() { return decode(largest_code); }
    static constexpr float smallest_normal() { return decode(uint32_t(1) << mantissa); }
    static constexpr float smallest() { return decode(1); }  // subnormal
    // The distance from 1 to the next larger number.
    static constexpr float epsilon() {
        return std::bit_cast<float>(uint32_t(127 - mantissa) << 23);
    }

    // The code of the nearest number; if two are equally near, the even code.
    static constexpr uint32_t encode(float x, Overflow overflow = Overflow::infinite) {
        // exercise 08.1 begin: round the significand to nearest, ties to the even code
        const Parts p = take_apart(x);
        if (p.shift == 0) return finish(x, p, p.significand, overflow);
        const uint32_t half = uint32_t(1) << (p.shift - 1), odd = p.significand >> p.shift & 1;
        return finish(x, p, (p.significand + half - 1 + odd) >> p.shift, overflow);
        // exercise 08.1 end
    }
    // One of the two neighbours of x, drawn with the probabilities that make x the expectation.
    // `random` consists of 32 uniform bits.
    static constexpr uint32_t encode_stochastic(float x, uint32_t random,
                                                Overflow overflow = Overflow::infinite) {
        // exercise 08.4 begin: add random bits where the format has no room, then cut off
        const Parts p = take_apart(x);
        const uint32_t below = (uint32_t(1) << p.shift) - 1;
        return finish(x, p, (p.significand + (random & below)) >> p.shift, overflow);
        // exercise 08.4 end
    }

private:
    // |x| = significand 2^(power - 23), where `power` is at least the format's smallest exponent.
    // `shift` is how many of the significand's last bits do not fit into the format.
    struct Parts {
        uint32_t significand;
        int power, shift;
    };
    static constexpr Parts take_apart(float x) {
        const uint32_t u = std::bit_cast<uint32_t>(x) & 0x7fffffffu;
        const bool normal = u >= 0x00800000u;
        const uint32_t significand = (u & 0x007fffffu) | (normal ? 0x00800000u : 0);
        const int power = normal ? int(u >> 23) - 127 : -126;
        const int below = smallest_exponent - power;  // subnormal in this format if positive
        const int lost = 23 - mantissa + (below > 0 ? below : 0);
        // With a shift of 31 or more, less than 1/128 of the smallest number is left. The bits
        // dropped here count only for stochastic rounding, where they keep its chance of 2^-31.
        const int more = lost > 31 ? lost - 31 : 0;
        return {more > 31 ? 0 : significand >> more, below > 0 ? smallest_exponent : power,
                lost - more};
    }
    // The leading one of a normal number in `rounded` already adds one to the exponent.
    static constexpr uint32_t finish(float x, Parts p, uint32_t rounded, Overflow overflow) {
        const uint32_t u = std::bit_cast<uint32_t>(x);
        uint32_t code = (uint32_t(p.power - smallest_exponent) << mantissa) + rounded;
        if (code > largest_code)
            code = overflow == Overflow::saturate ? largest_code
                   : codes == Codes::ieee         ? infinity
                                                  : nan;
        if (codes != Codes::numbers && ((u & 0x7fffffffu) > 0x7f800000u || code == nan))
            return nan;  // without a sign
        return code | (u >> 31 << (bits - 1));
    }
};

namespace formats {
using Fp32 = FloatFormat<8, 23>;
using Tf32 = FloatFormat<8, 10>;  // 19 bits: tensor cores read fp32 in this format
using Bf16 = FloatFormat<8, 7>;
using Fp16 = FloatFormat<5, 10>;
using E5m6 = FloatFormat<5, 6>;
using E5m2 = FloatFormat<5, 2>;
using E4m3 = FloatFormat<4, 3, Codes::one_nan>;
using E2m1 = FloatFormat<2, 1, Codes::numbers>;  // 0, 0.5, 1, 1.5, 2, 3, 4, 6
}  // namespace formats

}  // namespace ultrascale
