// Scales of parts of a matrix, where the plain linear has one for the whole tensor
// (2_plain_fp8_linear.h): an outlier spoils only its part. The first gradient is 5.8 % away from
// fp32's with rows and 5.9 % with tiles, but 6.7 % with one scale; beside outliers the gain is much
// larger (--demo scales). On an H200 training is 1.24 times as fast as in bf16 with tiles, 1.30
// times with one scale a tensor.
//
//     tensor    a scale for all             one large number, and all small ones lose their bits
//     row       a scale for each row        a token (or an output feature) has its own
//     tile      1 x 128 of a row            DeepSeek-V3: a token's 128 features have their own
//     block     128 x 128                   DeepSeek-V3: of weights, which have no outlier tokens
//
// A product sums over k. The scales of tensors and rows are constant along k, so they can multiply
// the finished sum. Those of tiles are not: every 128 of k have their own factor. So tensor cores
// add up 128 products, and this partial sum is multiplied by its factor and added in fp32. (That
// also cures the tensor cores' short accumulators, accumulator.h.)
//
//               k ->                       k ->
//     x  row    [ s1 | s2 | s3 ]    W^T    [ t11 | t12 | t13 ]      sum = s1 t11 (..) + s2 t12 (..)
//                128   128  128     128 n  [ t21 | ...       ]            + s3 t13 (..)
//
// The three products of a linear sum over different dimensions, so the groups lie differently:
//
//     Fprop   y  = x W^T      over h        x: tiles along h       W: blocks
//     Dgrad   dx = dy W       over F        dy: tiles along F      W: blocks, transposed the same
//     Wgrad   dW = dy^T x     over tokens   dy, x: tiles along the tokens, rounded once more
//
// DeepSeek-V3 Technical Report, section 3.3.2 (arXiv 2412.19437).
#pragma once

#include "3_recipes.h"
#include "core/ops_fp8.h"

namespace ultrascale::mixed_precision {

// The groups that share a scale, in activations and their gradients, and in weights.
inline ops::ScaleGroup group_of_tokens(Products products) {
    return products == Products::row    ? ops::ScaleGroup::row
           : products == Products::tile ? ops::ScaleGroup::tile
                                        : ops::ScaleGroup::tensor;
}
inline ops::ScaleGroup group_of_weights(Products products) {
    return products == Products::tile ? ops::ScaleGroup::block : group_of_tokens(products);
}

}  // namespace ultrascale::mixed_precision
