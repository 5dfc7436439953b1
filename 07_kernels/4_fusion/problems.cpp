// Family 4: several operations in one kernel. All are memory-bound, so the number of bytes that
// each version moves decides.
#include <algorithm>
#include <cmath>

#include "../problem.h"

namespace ultrascale::kernels {
namespace {

Problem row_problem(const char* name) {
    Problem problem{.name = name, .dimensions = {"rows", "columns"}};
    problem.timed = {{16384, 8192}};
    problem.observed = {{4, 8192}};  // as wide as the timed rows
    problem.awkward = {{1, 1},    {3, 7},    {5, 33},   {2, 1000},
                       {7, 4104}, {1, 5003}, {2, 34000}};  // the last two: more than registers hold
    problem.output = [](const Sizes& s) { return Input{{s[0], s[1]}, DType::bf16}; };
    problem.tolerance = 4e-3;  // rounding to bf16 changes a number by 2^-8 of it at most
    return problem;
}

double elements(const Sizes& s) { return double(s[0]) * double(s[1]); }

void softmax_of(const float* x, int64_t n, double* out) {
    const double largest = *std::max_element(x, x + n);
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += out[i] = std::exp(x[i] - largest);
    for (int64_t i = 0; i < n; ++i) out[i] /= sum;
}

void norm_in_place(double* x, const float* weight, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
    const double inverse = 1 / std::sqrt(squares / double(n) + 1e-5);
    for (int64_t i = 0; i < n; ++i) x[i] *= inverse * weight[i];
}

}  // namespace

std::vector<Problem> fusion() {
    Problem softmax = row_problem("softmax");
    softmax.inputs = [](const Sizes& s) { return std::vector<Input>{{{s[0], s[1]}, DType::bf16}}; };
    softmax.reference = [](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        softmax_of(&in[0][size_t(row * s[1])], s[1], out);
    };
    softmax.flops = [](const Sizes& s) { return 4 * elements(s); };
    softmax.bytes = [](const Sizes& s) { return 4 * elements(s); };

    // (x, weight) -> x * rsqrt(mean(x²) + 1e-5) * weight
    Problem norm = row_problem("rms norm");
    norm.inputs = [](const Sizes& s) {
        return std::vector<Input>{{{s[0], s[1]}, DType::bf16}, {{s[1]}, DType::bf16}};
    };
    norm.reference = [](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        std::copy_n(&in[0][size_t(row * s[1])], s[1], out);
        norm_in_place(out, in[1].data(), s[1]);
    };
    norm.tolerance = 8e-3;  // the unfused version rounds twice, by 2^-8 at most
    norm.flops = [](const Sizes& s) { return 4 * elements(s); };
    norm.bytes = [](const Sizes& s) { return 4 * elements(s) + 2.0 * double(s[1]); };

    // (x, residual, weight) -> (2, rows, columns): s = x + residual, and its norm
    Problem residual = row_problem("rms norm + residual");
    residual.inputs = [](const Sizes& s) {
        return std::vector<Input>{
            {{s[0], s[1]}, DType::bf16}, {{s[0], s[1]}, DType::bf16}, {{s[1]}, DType::bf16}};
    };
    residual.output = [](const Sizes& s) { return Input{{2, s[0], s[1]}, DType::bf16}; };
    residual.reference = [](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        const size_t first = size_t(row % s[0] * s[1]);
        for (int64_t i = 0; i < s[1]; ++i)
            out[i] = double(in[0][first + size_t(i)]) + in[1][first + size_t(i)];
        if (row >= s[0]) norm_in_place(out, in[2].data(), s[1]);
    };
    residual.tolerance = 8e-3;  // here, too: s, and its norm
    residual.flops = [](const Sizes& s) { return 5 * elements(s); };
    residual.bytes = [](const Sizes& s) { return 8 * elements(s) + 2.0 * double(s[1]); };

    // (logits, targets) -> the gradient of the mean loss with respect to the logits
    Problem loss = row_problem("cross-entropy");
    loss.timed = {{8192, 49152}};
    loss.observed = {{2, 49152}};
    loss.awkward.push_back({2, 60000});  // more than shared memory holds on the smallest GPUs
    loss.inputs = [](const Sizes& s) {
        return std::vector<Input>{{{s[0], s[1]}, DType::bf16}, {{s[0]}, DType::int32, s[1]}};
    };
    loss.reference = [](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        softmax_of(&in[0][size_t(row * s[1])], s[1], out);
        out[int64_t(in[1][size_t(row)])] -= 1;
        for (int64_t i = 0; i < s[1]; ++i) out[i] /= double(s[0]);
    };
    loss.flops = [](const Sizes& s) { return 5 * elements(s); };
    loss.bytes = [](const Sizes& s) { return 4 * elements(s) + 4.0 * double(s[0]); };
    return {softmax, norm, residual, loss};
}

}  // namespace ultrascale::kernels
