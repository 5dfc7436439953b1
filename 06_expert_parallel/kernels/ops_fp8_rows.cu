// Rows of numbers in 8 bits with their scales, and back. A warp has a block of 128 numbers, so its
// largest magnitude is found in registers, and each lane stores its four numbers as one word.
#include "cuda/fp8.cuh"
#include "ops_experts_checks.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 256, lanes = 32;

// The words of a block: four numbers each; and its scale.
struct BlockAt {
    uint32_t* words;
    float* scale;
    __device__ BlockAt(uint32_t* packed, int64_t block, int of_row) {
        uint32_t* const row = packed + block / of_row * (of_row * (lanes + 1));
        words = row + block % of_row * lanes;
        scale = reinterpret_cast<float*>(row + of_row * lanes + block % of_row);
    }
};

template <class T>
__global__ void __launch_bounds__(threads)
    pack_kernel(uint32_t* packed, const T* x, int64_t blocks, int of_row) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;  // four numbers
    if (i / lanes >= blocks) return;
    float four[4];
    to_floats(four, load<4>(x + i * 4));
    const float scale = scale_for(max_of_lanes<lanes>(max_magnitude(four)),
                                  formats::E4m3::largest(), false),
                by = 1.0f / scale;
    const BlockAt to(packed, i / lanes, of_row);
    to.words[i % lanes] =
        codes_of_four<__nv_fp8_e4m3>(four[0] * by, four[1] * by, four[2] * by, four[3] * by);
    if (i % lanes == 0) *to.scale = scale;
}

template <class T>
__global__ void __launch_bounds__(threads)
    unpack_kernel(T* x, uint32_t* packed, int64_t blocks, int of_row) {
    const int64_t i = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (i / lanes >= blocks) return;
    const BlockAt from(packed, i / lanes, of_row);
    const auto codes = load<4>(reinterpret_cast<const __nv_fp8_e4m3*>(from.words + i % lanes));
    const float scale = *from.scale;
    float four[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) four[j] = to_float(codes.x[j]) * scale;
    store(x + i * 4, from_floats<T>(four));
}

}  // namespace

void pack_fp8_rows(Tensor packed, const Tensor& x) {
    const int64_t blocks = packed_blocks(packed, x);
    OpSpan span("pack_fp8_rows", 2.0 * double(x.numel()), bytes_of(packed, x));
    with_type(x.dtype(), [&]<class T>(T) {
        LAUNCH(pack_kernel<T>, unsigned(ceil_div(blocks * lanes, threads)), threads, 0)
        (static_cast<uint32_t*>(packed.data()), data<T>(x), blocks, int(x.cols() / packed_block));
    });
}

void unpack_fp8_rows(Tensor x, const Tensor& packed) {
    const int64_t blocks = packed_blocks(packed, x);
    OpSpan span("unpack_fp8_rows", double(x.numel()), bytes_of(packed, x));
    with_type(x.dtype(), [&]<class T>(T) {
        LAUNCH(unpack_kernel<T>, unsigned(ceil_div(blocks * lanes, threads)), threads, 0)
        (data<T>(x), static_cast<uint32_t*>(packed.data()), blocks, int(x.cols() / packed_block));
    });
}

}  // namespace ultrascale::ops
