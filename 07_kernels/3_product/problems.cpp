// Family 3: the matrix product, the operation in which a Transformer spends most of its time. Each
// of M N results takes K multiply-adds, on K (M + N) inputs in all: large products are limited by
// arithmetic, but only if each number is used many times after it was read.
#include <algorithm>
#include <utility>

#include "../problem.h"
#include "core/ops.h"

namespace ultrascale::kernels {

std::vector<Problem> product() {
    const std::vector<std::string> dimensions = {"M", "N", "K"};
    const auto flops = [](const Sizes& s) {
        return 2.0 * double(s[0]) * double(s[1]) * double(s[2]);
    };
    const auto elements = [](const Sizes& s) {
        return double(s[0] * s[1]) + double(s[0] * s[2]) + double(s[1] * s[2]);
    };

    // C (M, N) = A (M, K) B (K, N)
    Problem fp32{.name = "product", .dimensions = dimensions};
    fp32.timed = {{4096, 4096, 4096}};
    fp32.observed = {{256, 256, 64}};
    // If K > 1, a row has more than two columns: a shorter row is sometimes near 0, and its
    // relative error is then large.
    fp32.awkward = {{1, 1, 1},  {37, 1, 1},   {3, 5, 7},     {70, 6, 100},
                    {1, 64, 9}, {33, 65, 17}, {64, 132, 36}, {130, 131, 129}};
    fp32.inputs = [](const Sizes& s) { return std::vector<Input>{{{s[0], s[2]}}, {{s[2], s[1]}}}; };
    fp32.output = [](const Sizes& s) { return Input{{s[0], s[1]}}; };
    fp32.reference = [](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        for (int64_t k = 0; k < s[2]; ++k) {
            const double a = in[0][size_t(row * s[2] + k)];
            for (int64_t n = 0; n < s[1]; ++n) out[n] += a * in[1][size_t(k * s[1] + n)];
        }
    };
    fp32.tolerance = 1e-5;
    fp32.flops = flops;
    fp32.bytes = [=](const Sizes& s) { return 4 * elements(s); };
    fp32.library = [](const Arguments& args) {
        ops::matmul(args.out, args.in[0], ops::Transpose::no, args.in[1], ops::Transpose::no);
        return true;
    };

    // A linear layer: C (M, N) = A (M, K) B^T, B (N, K), which is how weights are kept; each result
    // is a dot product of two rows.
    Problem bf16{.name = "product bf16", .dimensions = dimensions};
    bf16.timed = {{4096, 4096, 4096}, {8192, 8192, 8192}};
    bf16.observed = {{256, 512, 448}};
    // Here, too, rows have more than two columns if K > 1, and so does their last piece of 256
    // (check.h). In the last two sizes each block of a persistent kernel computes several tiles.
    bf16.awkward = {{1, 1, 1},       {3, 5, 7},        {1, 8, 64},      {33, 65, 17},
                    {128, 256, 64},  {130, 264, 72},   {257, 24, 1000}, {100, 278, 130},
                    {384, 535, 200}, {2100, 4500, 72}, {1900, 4303, 40}};
    bf16.refuses = [](const Sizes& s) {  // the kernels use int
        return std::ranges::max(s) < (int64_t(1) << 31) - 256 ? "" : "dimensions below 2147483392";
    };
    bf16.inputs = [](const Sizes& s) {
        return std::vector<Input>{{{s[0], s[2]}, DType::bf16}, {{s[1], s[2]}, DType::bf16}};
    };
    bf16.output = [](const Sizes& s) { return Input{{s[0], s[1]}, DType::bf16}; };
    bf16.reference = [](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        for (int64_t n = 0; n < s[1]; ++n)
            for (int64_t k = 0; k < s[2]; ++k)
                out[n] += double(in[0][size_t(row * s[2] + k)]) * in[1][size_t(n * s[2] + k)];
    };
    bf16.tolerance = 4e-3;  // bf16 keeps 8 bits
    bf16.flops = flops;
    bf16.bytes = [=](const Sizes& s) { return 2 * elements(s); };
    bf16.tensor_cores = true;
    bf16.library = [](const Arguments& args) {
        ops::matmul(args.out, args.in[0], ops::Transpose::no, args.in[1], ops::Transpose::yes);
        return true;
    };

    // The product in fp8 with a scale for each matrix: C (M, N) = scale_a scale_b A B^T, C in bf16
    Problem fp8 = bf16;
    bf16.library_default = gemm_ex_library();  // there is none for fp8
    fp8.name = "product fp8";
    fp8.inputs = [](const Sizes& s) {
        return std::vector<Input>{{.shape = {s[0], s[2]}, .e4m3 = true},
                                  {.shape = {s[1], s[2]}, .e4m3 = true},
                                  {.shape = {1}, .positive = true},
                                  {.shape = {1}, .positive = true}};
    };
    fp8.reference = [reference = bf16.reference](const Sizes& s, const HostInputs& in, int64_t row,
                                                 double* out) {
        reference(s, in, row, out);
        for (int64_t n = 0; n < s[1]; ++n) out[n] *= double(in[2][0]) * in[3][0];
    };
    // 4e-3 for the rounding to bf16. Tensor cores also cut products off 13 bits behind the leading
    // one of their sum: with this, a typical sum of K = 8192 products of both signs loses 2e-3
    // (7_product_fp8.cu). The rest is a margin for what is not known about them.
    fp8.tolerance = 2e-2;
    fp8.bytes = [=](const Sizes& s) { return elements(s) + double(s[0] * s[1]); };
    fp8.peaks = 2;
    fp8.library = fp8_library();

    // ... and with a scale for each 1 x 128 of A, and for each 128 x 128 of B: scales_a (K / 128,
    // M), scales_b (N / 128, K / 128 padded to a multiple of 4), the layout that cuBLAS requires.
    // The scales differ by many powers of two: with one scale per matrix, small blocks would be
    // zeros.
    Problem blocks = fp8;
    blocks.name = "product fp8 blocks";
    blocks.awkward.insert(blocks.awkward.end(), {{130, 150, 129}, {66, 300, 128}, {129, 140, 700}});
    const auto scales = [](const Sizes& s) {
        const int64_t in_k = (s[2] + 127) / 128;
        return std::pair(Shape{in_k, s[0]}, Shape{(s[1] + 127) / 128, (in_k + 3) / 4 * 4});
    };
    blocks.inputs = [=](const Sizes& s) {
        return std::vector<Input>{{.shape = {s[0], s[2]}, .e4m3 = true},
                                  {.shape = {s[1], s[2]}, .e4m3 = true},
                                  {.shape = scales(s).first, .octaves = 4},
                                  {.shape = scales(s).second, .octaves = 4}};
    };
    blocks.reference = [=](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        const int64_t M = s[0], N = s[1], K = s[2], b_columns = scales(s).second[1];
        for (int64_t n = 0; n < N; ++n)
            for (int64_t begin = 0; begin < K; begin += 128) {
                double sum = 0;
                for (int64_t k = begin; k < std::min(begin + 128, K); ++k)
                    sum += double(in[0][size_t(row * K + k)]) * in[1][size_t(n * K + k)];
                out[n] += sum * in[2][size_t(begin / 128 * M + row)] *
                          in[3][size_t(n / 128 * b_columns + begin / 128)];
            }
    };
    // 4e-3 for the rounding to bf16. Sums of 128 products lose 1.3e-4 of themselves, whatever K is.
    blocks.tolerance = 6e-3;
    blocks.bytes = [=](const Sizes& s) {
        return elements(s) + double(s[0] * s[1]) +
               4.0 * double(numel(scales(s).first) + numel(scales(s).second));
    };
    // A layer of experts: rows in groups of neighbours, each with a B of its own: C_g = A_g B_g^T,
    // B (G, N, K). Only the device knows how many rows each group has.
    Problem grouped{.name = "product grouped", .dimensions = {"M", "N", "K", "groups"}};
    grouped.timed = {{98304, 2048, 1408, 64}};  // 16,384 tokens, each to 6 of 64 experts
    grouped.observed = {{256, 256, 64, 3}};
    grouped.awkward = {{3, 5, 7, 2},      {1, 8, 64, 4},       {40, 264, 72, 9},
                       {700, 24, 104, 3}, {1000, 520, 200, 7}, {2100, 264, 64, 64}};
    grouped.refuses = bf16.refuses;
    grouped.inputs = [](const Sizes& s) {
        return std::vector<Input>{{{s[0], s[2]}, DType::bf16},
                                  {{s[3], s[1], s[2]}, DType::bf16},
                                  {.shape = {s[3]}, .dtype = DType::int32, .spread = s[0]}};
    };
    grouped.output = bf16.output;
    grouped.reference = [](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        int64_t group = 0, end = int64_t(in[2][0]);
        while (row >= end) end += int64_t(in[2][size_t(++group)]);
        for (int64_t n = 0; n < s[1]; ++n)
            for (int64_t k = 0; k < s[2]; ++k)
                out[n] += double(in[0][size_t(row * s[2] + k)]) *
                          in[1][size_t((group * s[1] + n) * s[2] + k)];
    };
    grouped.tolerance = bf16.tolerance;
    grouped.flops = flops;
    grouped.bytes = [](const Sizes& s) {
        return 2.0 * double(s[0] * s[1] + s[0] * s[2] + s[3] * s[1] * s[2]) + 4.0 * double(s[3]);
    };
    grouped.tensor_cores = true;
    // For the cost of grouping: cuBLAS's product of as many FLOPs with one B for all rows.
    grouped.library = [](const Arguments& args) {
        const Tensor first = args.in[1].slice(0, 1).view({args.size[1], args.size[2]});
        ops::matmul(args.out, args.in[0], ops::Transpose::no, first, ops::Transpose::yes);
        return true;
    };
    return {fp32, bf16, fp8, blocks, grouped};
}

}  // namespace ultrascale::kernels
