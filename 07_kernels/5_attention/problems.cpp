// Family 5: causal attention, forward.
#include <algorithm>
#include <cmath>

#include "../problem.h"

namespace ultrascale::kernels {

std::vector<Problem> attention() {
    Problem problem{.name = "attention", .dimensions = {"B", "T", "H", "D"}};
    problem.timed = {{4, 4096, 16, 64}, {4, 4096, 16, 128}};
    problem.observed = {{1, 128, 2, 64}};
    problem.awkward = {
        {1, 1, 1, 64}, {2, 17, 3, 128}, {1, 65, 2, 64}, {2, 100, 1, 128}, {1, 129, 1, 64}};
#ifdef ULTRASCALE_CUDA  // several tiles for each block of a persistent kernel
    problem.awkward.insert(problem.awkward.end(), {{3, 700, 24, 64}, {2, 600, 40, 128}});
#endif
    // (q, k, v) -> o, all (B, T, H, D)
    const auto tensor = [](const Sizes& s) { return Input{{s[0], s[1], s[2], s[3]}, DType::bf16}; };
    problem.inputs = [tensor](const Sizes& s) { return std::vector<Input>(3, tensor(s)); };
    problem.output = tensor;
    // Row (b, t, h) is softmax(q k^T / sqrt(D)) v over the keys 0 .. t.
    problem.reference = [](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        const int64_t T = s[1], H = s[2], D = s[3], h = row % H, t = row / H % T, b = row / H / T;
        const float* q = &in[0][size_t(row * D)];
        std::vector<double> score(size_t(t + 1), 0);
        const auto head_row = [&](int input, int64_t token) {
            return &in[size_t(input)][size_t(((b * T + token) * H + h) * D)];
        };
        for (int64_t j = 0; j <= t; ++j)
            for (int64_t d = 0; d < D; ++d)
                score[size_t(j)] += double(q[d]) * head_row(1, j)[d] / std::sqrt(double(D));
        const double largest = *std::max_element(score.begin(), score.end());
        double sum = 0;
        std::fill_n(out, D, 0.0);
        for (int64_t j = 0; j <= t; ++j) {
            const double weight = std::exp(score[size_t(j)] - largest);
            sum += weight;
            for (int64_t d = 0; d < D; ++d) out[d] += weight * head_row(2, j)[d];
        }
        for (int64_t d = 0; d < D; ++d) out[d] /= sum;
    };
    problem.refuses = [](const Sizes& s) {
        return s[3] == 64 || s[3] == 128 ? "" : "D is 64 or 128";
    };
    // P is rounded to bf16 before the tensor cores take it, and so is the output.
    problem.tolerance = 1e-2;
    // Two products of 2 T T D FLOPs each, of which the causal mask leaves half.
    problem.flops = [](const Sizes& s) {
        return 2.0 * double(s[0] * s[2]) * double(s[1]) * double(s[1]) * double(s[3]);
    };
    problem.bytes = [](const Sizes& s) {
        return 4 * 2.0 * double(s[0] * s[1]) * double(s[2] * s[3]);
    };
    problem.tensor_cores = true;
    return {problem};
}

}  // namespace ultrascale::kernels
