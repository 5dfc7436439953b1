// Whole tensors by name, which rank 0 of a run knows from its plain training (plain_training.h),
// and the parts of them that ranks hold: how far the ones are from the others.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "plain_training.h"

namespace ultrascale {

inline double square(double x) { return x * x; }

// L2.
double norm(const PlainTraining::Values& values);

// Of the parts that all ranks hold from the whole tensors, L2. What several ranks hold counts once;
// what nobody holds makes it NaN. All ranks call it.
double distance(const std::vector<TensorPart>& parts, const PlainTraining::Values& whole);

// `values` becomes rank 0's on all ranks, which all call it.
void tell(PlainTraining::Values& values);

// Between ranks numbers travel as bytes: a stream would not read a NaN back.
template <class T>
std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}
template <class T>
std::vector<T> from_bytes(const std::string& bytes) {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
}

}  // namespace ultrascale
