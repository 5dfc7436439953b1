// Family 3: the matrix product, the operation a Transformer spends most of its time in. K multiply-adds for each of M N results from
// K (M + N) inputs: large products are bound by arithmetic, but only if what was read is used again and again.
#include "../problem.h"
#include "ops.h"

namespace ultrascale::kernels {

std::vector<Problem> product() {
    const std::vector<std::string> dimensions = {"M", "N", "K"};
    const auto flops = [](const Sizes& s) { return 2.0 * double(s[0]) * double(s[1]) * double(s[2]); };
    const auto elements = [](const Sizes& s) { return double(s[0] * s[1]) + double(s[0] * s[2]) + double(s[1] * s[2]); };

    // C (M, N) = A (M, K) B (K, N)
    Problem fp32{.name = "product", .dimensions = dimensions};
    fp32.timed = {{4096, 4096, 4096}};
    fp32.observed = {{256, 256, 64}};
    // No K > 1 with a column or two: so short a row is now and then near 0, and its relative error large.
    fp32.awkward = {{1, 1, 1}, {37, 1, 1}, {3, 5, 7}, {70, 6, 100}, {1, 64, 9}, {33, 65, 17}, {64, 132, 36}, {130, 131, 129}};
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
    fp32.library = [](const Arguments& args) { ops::matmul(args.out, args.in[0], ops::Transpose::no, args.in[1], ops::Transpose::no); };

    // A linear layer: C (M, N) = A (M, K) B^T, B (N, K), as weights are kept; a dot product of two rows for each result
    Problem bf16{.name = "product bf16", .dimensions = dimensions};
    bf16.timed = {{4096, 4096, 4096}, {8192, 8192, 8192}};
    bf16.observed = {{256, 512, 448}};
    bf16.awkward = {{1, 1, 1},      {3, 5, 7},       {1, 8, 64},      {33, 65, 17},   {128, 256, 64},
                    {130, 264, 72}, {257, 24, 1000}, {100, 258, 130}, {384, 513, 200}};
    bf16.inputs = [](const Sizes& s) { return std::vector<Input>{{{s[0], s[2]}, DType::bf16}, {{s[1], s[2]}, DType::bf16}}; };
    bf16.output = [](const Sizes& s) { return Input{{s[0], s[1]}, DType::bf16}; };
    bf16.reference = [](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        for (int64_t n = 0; n < s[1]; ++n)
            for (int64_t k = 0; k < s[2]; ++k) out[n] += double(in[0][size_t(row * s[2] + k)]) * in[1][size_t(n * s[2] + k)];
    };
    bf16.tolerance = 4e-3;  // bf16 keeps 8 bits
    bf16.flops = flops;
    bf16.bytes = [=](const Sizes& s) { return 2 * elements(s); };
    bf16.tensor_cores = true;
    bf16.library = [](const Arguments& args) { ops::matmul(args.out, args.in[0], ops::Transpose::no, args.in[1], ops::Transpose::yes); };

    // The same in fp8 with a scale for each matrix: C (M, N) = scale_a scale_b A B^T, C in bf16
    Problem fp8 = bf16;
    fp8.name = "product fp8";
    fp8.inputs = [](const Sizes& s) {
        return std::vector<Input>{{.shape = {s[0], s[2]}, .e4m3 = true},
                                  {.shape = {s[1], s[2]}, .e4m3 = true},
                                  {.shape = {1}, .positive = true},
                                  {.shape = {1}, .positive = true}};
    };
    fp8.reference = [reference = bf16.reference](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        reference(s, in, row, out);
        for (int64_t n = 0; n < s[1]; ++n) out[n] *= double(in[2][0]) * in[3][0];
    };
    fp8.tolerance = 3e-2;  // tensor cores keep some 14 bits of a sum of fp8 products
    fp8.bytes = [=](const Sizes& s) { return elements(s) + double(s[0] * s[1]); };
    fp8.peaks = 2;
    fp8.library = nullptr;
    return {fp32, bf16, fp8};
}

}  // namespace ultrascale::kernels
