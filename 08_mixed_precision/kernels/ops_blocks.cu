// Rounds blocks of a matrix. A thread has a block: simple rather than fast, since what the numbers
// are made for, a tensor core that multiplies them, is not there.
#include "cuda/ops_common.cuh"
#include "ops_blocks_rounding.h"

namespace ultrascale::ops {

namespace {

constexpr int threads = 128;

template <class Block, class T>
__device__ Block block_of(const T* x, int64_t n, int64_t R, int64_t C, const BlockRounding& how) {
    return Block(n, R, C, how, [=](int64_t at) { return to_float(x[at]); });
}

// *amax becomes the bits of the largest magnitude.
template <class Block, class T>
__global__ void measure(unsigned* amax, const T* x, int64_t R, int64_t C, BlockRounding how) {
    const int64_t n = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (n < Block::count(R, C)) atomicMax(amax, block_of<Block>(x, n, R, C, how).amax());
}

template <class Block, class T>
__global__ void round_each(__nv_bfloat16* y, float* tensor_scale, const unsigned* tensor_amax,
                           const T* x, int64_t R, int64_t C, BlockRounding how) {
    const int64_t n = int64_t(blockIdx.x) * threads + threadIdx.x;
    if (n >= Block::count(R, C)) return;
    const unsigned amax = tensor_amax ? *tensor_amax : 0;
    if (tensor_scale && n == 0) *tensor_scale = nvfp4_scale(amax);
    block_of<Block>(x, n, R, C, how).round(how, amax, [=](int64_t at, float v) {
        y[at] = from_float<__nv_bfloat16>(v);
    });
}

}  // namespace

void round_blocks(Tensor y, const Tensor& x, const BlockRounding& how, Tensor tensor_scale) {
    check_blocks(y, x, how, tensor_scale);
    const int64_t R = x.rows(), C = x.cols();
    const OpSpan span("round_blocks", 2.0 * double(R * C), bytes_of(y, x));
    Tensor amax;
    if (tensor_scale) amax = Tensor::zeros({1}, DType::int32, Memory::workspace);
    auto* const bits = amax ? reinterpret_cast<unsigned*>(amax.as<int32_t>()) : nullptr;
    with_type(x.dtype(), [&]<class T>(T) {
        with_blocks(how, [&]<class Block>() {
            const auto grid = unsigned(ceil_div(Block::count(R, C), threads));
            if (bits)
                LAUNCH((measure<Block, T>), grid, threads, 0)(bits, data<const T>(x), R, C, how);
            LAUNCH((round_each<Block, T>), grid, threads, 0)
            (data<__nv_bfloat16>(y), tensor_scale ? data<float>(tensor_scale) : nullptr, bits,
             data<const T>(x), R, C, how);
        });
    });
}

}  // namespace ultrascale::ops
