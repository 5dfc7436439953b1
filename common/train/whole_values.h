// Distances between whole tensors, which rank 0 has from its plain training (plain_training.h), and
// the parts of them that the ranks of a run hold.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "plain_training.h"

namespace ultrascale {

inline double square(double x) { return x * x; }

// The L2 norm.
double norm(const PlainTraining::Values& values);

// The L2 distance of all ranks' parts from the whole tensors. Elements that several ranks hold
// count once; a tensor that no rank holds makes the result NaN. All ranks call it.
double distance(const std::vector<TensorPart>& parts, const PlainTraining::Values& whole);

// Broadcasts rank 0's `values`. All ranks call it.
void tell(PlainTraining::Values& values);

// Numbers are sent between ranks as bytes, because a text stream cannot read NaN.
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

// Rank 0's values. All ranks call it.
template <class T>
std::vector<T> told(const std::vector<T>& values) {
    return from_bytes<T>(Communicator::world().broadcast_string(bytes_of(values), 0));
}

}  // namespace ultrascale
