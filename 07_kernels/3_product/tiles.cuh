// How the last three fp32 products move tiles.
#pragma once

#include <cuda_pipeline_primitives.h>

#include "../kernel.h"

namespace ultrascale::kernels {

// Begins to copy one element, or writes a zero if it lies outside the matrix.
__device__ inline void begin_copy(float* to, const float* from, bool inside) {
    if (inside)
        __pipeline_memcpy_async(to, from, 4);
    else
        *to = 0;
}

// Stores elements column .. column + 3 of a row, if they exist; column is a multiple of 4.
__device__ inline void store4(float* matrix, int64_t rows, int64_t columns, int64_t row,
                              int64_t column, const float (&values)[4]) {
    float* to = matrix + row * columns + column;
    if (row >= rows || column >= columns) return;
    if (columns % 4 == 0)
        *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
    else
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (column + i < columns) to[i] = values[i];
}
// Loads four numbers from an address that is a multiple of 16.
__device__ inline void copy4(float* registers, const float* shared) {
    const float4 v = *reinterpret_cast<const float4*>(shared);
    registers[0] = v.x, registers[1] = v.y, registers[2] = v.z, registers[3] = v.w;
}

}  // namespace ultrascale::kernels
