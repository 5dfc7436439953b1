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

}  // namespace ultrascale::ops
