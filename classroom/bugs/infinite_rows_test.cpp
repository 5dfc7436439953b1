// Exercise 04.b3: merging blocks when a row has seen no key.
#include <gtest/gtest.h>

#include <cmath>

#include "04_context_parallel/kernels/ops_attention_merge.h"
#include "core/ops.h"

namespace ultrascale {
namespace {

Tensor row(float x) {  // (1, 1, 1, 4)
    return Tensor::from_host<float>(std::vector<float>(4, x), {1, 1, 1, 4}, Memory::workspace);
}
Tensor number(float x) {  // (1, 1, 1)
    return Tensor::from_host<float>(std::vector<float>{x}, {1, 1, 1}, Memory::workspace);
}

TEST(RowsWithoutKeys, AreCaught) {
    // exercise 04.b3 begin: merge a block without keys into nothing, and into something
    const Tensor o = row(0), lse = number(-INFINITY);
    ops::attention_merge(o, lse, row(0), number(-INFINITY), 0);
    EXPECT_EQ(lse.to_host<float>()[0], -INFINITY);
    EXPECT_EQ(o.to_host<float>()[0], 0);
    ops::attention_merge(o, lse, row(3), number(1), 0);
    ops::attention_merge(o, lse, row(7), number(-INFINITY), 0);
    EXPECT_EQ(lse.to_host<float>()[0], 1);
    EXPECT_EQ(o.to_host<float>()[3], 3);
    // exercise 04.b3 end
}

}  // namespace
}  // namespace ultrascale
