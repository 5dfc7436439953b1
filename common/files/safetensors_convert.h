// Private to safetensors.cpp and safetensors_writer.cpp: conversion between floating-point dtypes.
#pragma once

#include <cstring>

#include "safetensors.h"

namespace ultrascale {

template <class To, class From>
void convert_values(void* to, const unsigned char* from, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        From value;
        std::memcpy(&value, from + i * int64_t(sizeof(From)), sizeof(From));  // may be unaligned
        static_cast<To*>(to)[i] = To(float(value));
    }
}

using Convert = void (*)(void* to, const unsigned char* from, int64_t count);

template <class To>
Convert converter_to(const std::string& from) {
    return from == "F32"    ? convert_values<To, float>
           : from == "BF16" ? convert_values<To, bf16>
           : from == "F16"  ? convert_values<To, fp16>
                            : nullptr;
}

inline Convert converter(const std::string& from,
                         DType to) {  // nullptr: not supported
    if (to == DType::fp32) return converter_to<float>(from);
    if (to == DType::bf16) return converter_to<bf16>(from);
    if (to == DType::fp16) return converter_to<fp16>(from);
    return nullptr;
}

}  // namespace ultrascale
