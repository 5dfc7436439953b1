// Rows in another order: every dtype, rows of any size, repeated rows, any alignment.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/device.h"
#include "core/ops.h"
#include "tests/test_util.h"

namespace ultrascale {
namespace {

constexpr DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16, DType::fp64, DType::int32};

// Returns numbers that every dtype can represent.
Tensor numbers(const Shape& shape, DType dtype, uint64_t seed) {
    const Tensor values = random_integers(shape, -100, 100, seed);
    return dtype == DType::int32 ? values : tensor_of(to_double(values), shape, dtype);
}
Tensor unwritten(const Shape& shape, DType dtype) {
    return dtype == DType::int32
               ? integers(std::vector<int32_t>(size_t(numel(shape)), 12345), shape)
               : poisoned(shape, dtype);
}

Doubles gathered(const Tensor& in, const Tensor& index, int64_t row) {
    const Doubles from = to_double(in);
    Doubles rows;
    for (const int32_t n : index.to_host<int32_t>())
        rows.insert(rows.end(), from.begin() + n * row, from.begin() + (n + 1) * row);
    return rows;
}

TEST(OpsGatherRows, AnyRows) {
    for (const DType dtype : dtypes)
        for (const int64_t row : {1, 3, 8, 7, 64, 130, 1000})
            for (const auto& [N, rows] : {std::pair<int64_t, int64_t>{1, 1}, {5, 3}, {37, 100}}) {
                SCOPED_TRACE(fmt::format("{} row {} N {}", dtype_name(dtype), row, N));
                const Tensor in = numbers({rows, row}, dtype, 51),
                             index = random_integers({N}, 0, int32_t(rows - 1), 52),
                             out = unwritten({N, row}, dtype);
                ops::gather_rows(out, in, index);
                EXPECT_EQ(to_double(out), gathered(in, index, row));
            }
}

// A few rows are so long that several warps, or threads, share one.
TEST(OpsGatherRows, LongRows) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
        for (const int64_t row : {40000, 40003}) {
            const Tensor in = numbers({3, row}, dtype, 53), index = integers({2, 0, 2, 1}, {4}),
                         out = unwritten({4, row}, dtype);
            ops::gather_rows(out, in, index);
            EXPECT_EQ(to_double(out), gathered(in, index, row));
        }
}

// Puts chunks of sequences, as ranks hold them, back in the sequence's order. A tensor of any shape
// is a matrix of which either the number of rows (that of the indices) or their size is given.
TEST(OpsGatherRows, ChunksOfFourDimensions) {
    const Tensor in = numbers({4, 2, 10, 6, 5}, DType::bf16, 54),  // (ranks, chunks, ...)
        index = integers({0, 2, 4, 6, 7, 5, 3, 1}, {8}),
                 out = unwritten({1, 80, 6, 5}, DType::bf16);
    ops::gather_rows(out, in, index);
    EXPECT_EQ(to_double(out), gathered(in, index, 300));
}

TEST(OpsGatherRows, AnyAddress) {
    for (const DType dtype : dtypes)
        for (const bool shift_out : {false, true}) {
            const Tensor in = numbers({5 * 16 + 1}, dtype, 55),
                         out = unwritten({7 * 16 + 1}, dtype),
                         index = integers({4, 4, 0, 1, 3, 2, 0}, {7});
            const Tensor from = in.slice(!shift_out, 80 + !shift_out),
                         to = out.slice(shift_out, 112 + shift_out);
            ops::gather_rows(to, from, index);
            EXPECT_EQ(to_double(to), gathered(from, index, 16));
            const Doubles all = to_double(out);  // the element that is not part of it
            const double other = shift_out ? all.front() : all.back();
            EXPECT_TRUE(std::isnan(other) || other == 12345);
        }
}

TEST(OpsGatherRows, Nothing) {
    const Tensor in = numbers({4, 3}, DType::fp32, 56), none = integers({}, {0});
    ops::gather_rows(unwritten({0, 3}, DType::fp32), in, none);
    ops::gather_rows(unwritten({2, 0}, DType::fp32), unwritten({4, 0}, DType::fp32),
                     integers({1, 2}, {2}));
    const Tensor out = unwritten({1, 3}, DType::fp32);
    ops::gather_rows(out, in, integers({3}, {1}));  // the simulated GPU needs a kernel in each test
    EXPECT_EQ(to_double(out), gathered(in, integers({3}, {1}), 3));
}

TEST(OpsGatherRows, MistakesAreFound) {
    const Tensor in = numbers({4, 3}, DType::fp32, 57), index = integers({0, 3}, {2});
    const auto error = [&](const Tensor& out, const Tensor& from, const Tensor& rows) {
        EXPECT_THROW(ops::gather_rows(out, from, rows), std::logic_error);
    };
    error(unwritten({2, 3}, DType::int32), in, index);
    error(unwritten({1, 3}, DType::fp32), in, index);
    error(unwritten({2, 5}, DType::fp32), in, index);
    ops::gather_rows(unwritten({2, 3}, DType::fp32), in, index);
    if (device_is_gpu()) return;  // a kernel cannot report a wrong index
    error(unwritten({2, 3}, DType::fp32), in, integers({0, 4}, {2}));
    error(unwritten({2, 3}, DType::fp32), in, integers({-1, 0}, {2}));
}

}  // namespace
}  // namespace ultrascale
