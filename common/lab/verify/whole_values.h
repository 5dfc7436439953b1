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

double norm(const Reference::Values& values);

// How all ranks' parts of a tensor compare with the whole tensor, element by element. Elements that
// several ranks hold count once; if no rank holds any, the sums are NaN.
struct Comparison {
    double apart = 0;    // the sum of squared differences
    double product = 0;  // the sum of products of both
    double size = 0;     // the whole tensor's: the sum of squares
};
// Compares each of the whole tensors, in their order. All ranks call it.
std::vector<Comparison> compare(const std::vector<TensorPart>& parts,
                                const Reference::Values& whole);
// The L2 distance over all tensors.
double distance(const std::vector<Comparison>& tensors);
inline double distance(const std::vector<TensorPart>& parts, const Reference::Values& whole) {
    return distance(compare(parts, whole));
}

// Broadcasts rank 0's `values`. All ranks call it.
void tell(Reference::Values& values);

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
