// Tensor cores are fed by loads that need sizes which are multiples of 8 numbers of 16 bits. For a
// vocabulary of 50,257 cuBLAS falls back to kernels that are several times as slow, so a large
// product multiplies copies of the matrices, with rows and columns of zeros. Private to
// common/cuda.
#pragma once

#include "core/tensor.h"

namespace ultrascale {

inline int64_t padded(int64_t size) { return (size + 7) / 8 * 8; }

// Whether a product of these sizes takes longer than the copies.
inline bool worth_padding(int64_t M, int64_t N, int64_t K, DType dtype) {
    return dtype_bytes(dtype) == 2 && 2.0 * double(M) * double(N) * double(K) >= 1e9 &&
           (M % 8 != 0 || N % 8 != 0 || K % 8 != 0);
}

// A matrix and its padded copy, in workspace memory; the matrix itself if it needs no padding.
class Padded {
public:
    explicit Padded(const Tensor& matrix);
    void take() const;       // tensor = matrix, and zeros
    void give_back() const;  // matrix = its part of tensor
    Tensor tensor;

private:
    bool is_copy() const { return tensor.data() != matrix_.data(); }
    Tensor matrix_;
};

}  // namespace ultrascale
