// Shared by both backends' operations on lists of tensors. Private to common/cpu and common/cuda.
#pragma once

#include "tensor.h"

namespace ultrascale::ops {

struct ListSizes {
    double elements = 0, bytes = 0;
};
// The sizes of all tensors together. Fails with the message `wrong` unless they share a dtype.
inline ListSizes list_sizes(const std::vector<Tensor>& xs, const char* wrong) {
    ListSizes sizes;
    for (const Tensor& x : xs) {
        check(x.dtype() == xs[0].dtype(), wrong);
        sizes.elements += double(x.numel()), sizes.bytes += double(x.bytes());
    }
    return sizes;
}

// Fails with this message unless all tensors have as many elements as the first one.
inline void check_sizes(const char* sizes_differ, const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) check(tensor.numel() == tensors[0].numel(), sizes_differ);
}

}  // namespace ultrascale::ops
