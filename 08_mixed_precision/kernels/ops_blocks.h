// Matrices whose blocks of 16 or 32 neighbours share a scale of 8 bits: mxfp8 and nvfp4, emulated.
// The conventions of core/ops.h hold here, too.
//
//     format     block   number   scale of a block                 scale of the tensor
//     mx_e4m3    32      e4m3     e8m0: a power of two             -
//     mx_e5m2    32      e5m2     e8m0                             -
//     nvfp4      16      e2m1     e4m3: amax / 6 / the tensor's    fp32: amax / (6 * 448)
//
// The tensor cores of Blackwell multiply such numbers; here they are emulated. round_blocks()
// writes number * scale of its block in bf16, and that is exact: a number has at most 4 bits of
// significand, nvfp4's scale has 4 and its number 2, and bf16 has room for 8. The product of two
// such operands is then an ordinary product in bf16, which adds exact products in fp32, in the
// tensor cores' way but for the order. The scale of the tensor would not fit into bf16; so it is
// returned, and the caller multiplies the sums by it. (In mx formats a block whose largest
// magnitude is below 2^-115 may be inexact: bf16 ends there.)
#pragma once

#include <optional>

#include "core/random.h"
#include "core/tensor.h"

namespace ultrascale::ops {

enum class BlockFormat { mx_e4m3, mx_e5m2, nvfp4 };
// Where a block lies: along a row, down a column, or (nvfp4) on a square of 16 x 16, whose numbers
// and their transpose are the same.
enum class BlockShape { row, column, square };

struct BlockRounding {
    BlockFormat format = BlockFormat::mx_e4m3;
    BlockShape shape = BlockShape::row;
    // mx: the scale is the least power of two with which nothing saturates; otherwise OCP's, which
    // is half as large if the block's amax is between 448 and 512 times a power of two.
    bool round_up = true;
    // nvfp4: number i of a block (16) changes its sign if bit i is set; then a Hadamard matrix / 4
    // multiplies the block. All blocks are whole.
    std::optional<uint32_t> hadamard = {};
    // Rounds stochastically. Element (r, c) of x (R, C) draws the number first + r C + c.
    std::optional<Random> random = {};
    uint64_t first = 0;
};

// The bits of a number, its share of the block's scale included.
constexpr double block_bits(BlockFormat format, BlockShape shape = BlockShape::row) {
    if (format != BlockFormat::nvfp4) return 8 + 8.0 / 32;
    return 4 + 8.0 / (shape == BlockShape::square ? 256 : 16);
}

// y (R, C) bf16 = x (R, C), which is fp32, bf16 or fp16, rounded: x ~ y, and for nvfp4 x ~
// tensor_scale (1) fp32 * y. The last block of a row or column may be shorter. A block with a NaN
// or an infinity becomes NaN; in nvfp4 the whole tensor's products do.
void round_blocks(Tensor y, const Tensor& x, const BlockRounding& how, Tensor tensor_scale = {});

}  // namespace ultrascale::ops
