// --demo formats: shows what each format can hold, and one number in every format.
#pragma once

#include "../1_formats.h"
#include "lab/report/report.h"

namespace ultrascale::mixed_precision {

namespace formats_demo {

inline void print_limits() {
    print(
        "format  bits  sign exponent mantissa     largest  smallest normal  smallest     epsilon");
    for_each_format([]<class F>(const char* name) {
        using Limits = FormatLimits<F>;
        print(fmt::format(
            "{:<6}  {:>4}  {:>4} {:>8} {:>8}  {:>10.4g}  {:>15.4g}  {:>8.2g}  2^-{:<2}"
            "{:>8.2g}",
            name, F::bits, 1, F::exponent_bits, F::mantissa_bits, Limits::largest,
            Limits::smallest_normal, Limits::smallest, F::mantissa_bits, Limits::epsilon));
    });
}

// Formats whose numbers come in blocks that share a scale: the bits a number takes, scale included,
// and the ratio of the largest to the smallest number within a block.
inline void print_blocks() {
    struct Block {
        const char *name, *element, *scale;
        int elements, element_bits, scale_bits;
        double largest, smallest;
    };
    using formats::E4m3, formats::E2m1;
    print("");
    print("block format     block of   numbers   scale       bits a number   largest / smallest");
    for (const Block& b :
         {Block{"DeepSeek's tile", "e4m3", "fp32", 128, 8, 32, E4m3::largest(), E4m3::smallest()},
          Block{"mxfp8", "e4m3", "e8m0: 2^k", 32, 8, 8, E4m3::largest(), E4m3::smallest()},
          Block{"nvfp4", "e2m1", "e4m3, fp32", 16, 4, 8, E2m1::largest(), E2m1::smallest()}})
        print(fmt::format(
            "{:<15}  {:>8}   {:<7}   {:<10}  {:>13.2f}   {:>18.0f}", b.name, b.elements, b.element,
            b.scale, b.element_bits + double(b.scale_bits) / b.elements, b.largest / b.smallest));
}

// Prints one number in every format: its bits, their meaning, and the error.
inline void print_number(double number) {
    print("");
    print(fmt::format("{:.10g} in each format, rounded to nearest, ties to even:", number));
    for_each_format([&]<class F>(const char* name) {
        const uint32_t code = F::encode(float(number));
        const double value = double(F::decode(code));
        const std::string error = number == 0 || !std::isfinite(value)
                                      ? ""
                                      : fmt::format("{:+.1e}", (value - number) / std::abs(number));
        print(fmt::format("  {:<5} {:<34} {:<32} {:>9} {}", name, bits_of_code<F>(code),
                          explain_code<F>(code), error, number == 0 ? "" : "relative"));
    });
}

// Prints what becomes of numbers past the largest: infinity or NaN, or with saturation the largest.
inline void print_overflow() {
    print("");
    print("past the largest number:   as IEEE or OCP says   saturated");
    for_each_format([]<class F>(const char* name) {
        if constexpr (F::bits <= 16) {
            const float beyond = F::exponent_bits == 8 ? 3.4028235e38f : 2 * F::largest();
            print(fmt::format("  {:<6} {:>12.6g} -> {:>20} {:>11.6g}", name, beyond,
                              explain_code<F>(F::encode(beyond)),
                              F::decode(F::encode(beyond, Overflow::saturate))));
        }
    });
}

}  // namespace formats_demo

inline void demo_formats(double number) {
    formats_demo::print_limits();
    formats_demo::print_blocks();
    formats_demo::print_number(number);
    formats_demo::print_overflow();
}

}  // namespace ultrascale::mixed_precision
