// Creates tensors of the category "activation".
#pragma once

#include <utility>

#include "core/tensor.h"

namespace ultrascale {

inline Tensor activation(Shape shape, DType dtype) {
    return Tensor::empty(std::move(shape), dtype, Memory::activation);
}
inline Tensor activation_like(const Tensor& t) { return activation(t.shape(), t.dtype()); }

}  // namespace ultrascale
