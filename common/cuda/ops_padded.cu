// Copies of matrices with longer rows, and back. Memory-bound.
#include "ops_common.cuh"
#include "padded.h"

namespace ultrascale {

namespace {

constexpr int threads = 256;

// to (to_rows, to_cols) = from (from_rows, from_cols) where that has an element, else 0. A thread
// copies `each` columns of every gridDim.y-th row.
constexpr int each = 8;
template <class T>
__global__ void __launch_bounds__(threads)
    copy_part(T* to, const T* from, int64_t to_rows, int64_t to_cols, int64_t from_rows,
              int64_t from_cols) {
    const int64_t first = int64_t(blockIdx.x) * threads * each + threadIdx.x;
    for (int64_t row = blockIdx.y; row < to_rows; row += gridDim.y) {
        T values[each];
#pragma unroll
        for (int j = 0; j < each; ++j) {
            const int64_t column = first + j * threads;
            values[j] =
                row < from_rows && column < from_cols ? from[row * from_cols + column] : T();
        }
#pragma unroll
        for (int j = 0; j < each; ++j)
            if (const int64_t column = first + j * threads; column < to_cols)
                to[row * to_cols + column] = values[j];
    }
}

void copy_matrix(const Tensor& to, const Tensor& from) {
    if (to.numel() == 0) return;
    const auto start = [&]<class T>(T) {
        LAUNCH(copy_part<T>,
               dim3(unsigned(ops::ceil_div(to.cols(), threads * each)),
                    unsigned(std::min<int64_t>(to.rows(), 1024))),
               threads, 0)
        (static_cast<T*>(to.data()), static_cast<const T*>(from.data()), to.rows(), to.cols(),
         from.rows(), from.cols());
    };
    dtype_bytes(to.dtype()) == 4 ? start(uint32_t()) : start(uint16_t());
}

}  // namespace

Padded::Padded(const Tensor& matrix) : tensor(matrix), matrix_(matrix) {
    const Shape shape = {padded(matrix.rows()), padded(matrix.cols())};
    if (shape[0] != matrix.rows() || shape[1] != matrix.cols())
        tensor = Tensor::empty(shape, matrix.dtype(), Memory::workspace);
}
void Padded::take() const {
    if (is_copy()) copy_matrix(tensor, matrix_);
}
void Padded::give_back() const {
    if (is_copy()) copy_matrix(matrix_, tensor);
}

}  // namespace ultrascale
