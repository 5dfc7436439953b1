// Family 1: element-wise operations, all of them memory-bound.
#include <cmath>

#include "../problem.h"

namespace ultrascale::kernels {

std::vector<Problem> first_steps() {
    const auto vectors = [](int count) {
        return [count](const Sizes& s) { return std::vector<Input>(size_t(count), Input{{s[0]}}); };
    };
    const auto vector = [](const Sizes& s) { return Input{{s[0]}}; };
    const std::vector<Sizes> timed = {{1 << 26}}, observed = {{1 << 16}},
                             awkward = {{1}, {31}, {257}, {1000}, {4099}};

    Problem add{.name = "vector add",
                .dimensions = {"n"},
                .timed = timed,
                .observed = observed,
                .awkward = awkward};
    add.inputs = vectors(2);
    add.output = vector;
    add.reference = [](const Sizes& s, const HostInputs& in, int64_t, double* out) {
        for (int64_t i = 0; i < s[0]; ++i) out[i] = double(in[0][size_t(i)]) + in[1][size_t(i)];
    };
    add.flops = [](const Sizes& s) { return double(s[0]); };
    add.bytes = [](const Sizes& s) { return 12.0 * double(s[0]); };

    Problem elu{.name = "elu",
                .dimensions = {"n"},
                .timed = timed,
                .observed = observed,
                .awkward = awkward};
    elu.inputs = vectors(1);
    elu.output = vector;
    elu.reference = [](const Sizes& s, const HostInputs& in, int64_t, double* out) {
        for (int64_t i = 0; i < s[0]; ++i)
            out[i] = in[0][size_t(i)] > 0 ? double(in[0][size_t(i)])
                                          : std::expm1(double(in[0][size_t(i)]));
    };
    elu.flops = [](const Sizes& s) { return 2.0 * double(s[0]); };
    elu.bytes = [](const Sizes& s) { return 8.0 * double(s[0]); };
    elu.tolerance = 2e-5;  // exp(x) - 1, as elu_unfused has it, loses the digits of a small x

    Problem swiglu{.name = "swiglu", .dimensions = {"rows", "columns"}};
    swiglu.timed = {{16384, 4096}};
    swiglu.observed = {{64, 512}};
    swiglu.awkward = {{1, 1}, {3, 7}, {5, 24}, {17, 1032}, {2, 1001}};
    swiglu.inputs = [](const Sizes& s) {
        return std::vector<Input>{{{s[0], 2 * s[1]}, DType::bf16}};
    };
    swiglu.output = [](const Sizes& s) { return Input{{s[0], s[1]}, DType::bf16}; };
    swiglu.reference = [](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        const float *gate = &in[0][size_t(row * 2 * s[1])], *up = gate + s[1];
        for (int64_t i = 0; i < s[1]; ++i)
            out[i] = gate[i] / (1 + std::exp(-double(gate[i]))) * up[i];
    };
    swiglu.tolerance = 4e-3;  // bf16 keeps 8 bits
    swiglu.flops = [](const Sizes& s) { return 5.0 * double(s[0] * s[1]); };
    swiglu.bytes = [](const Sizes& s) { return 6.0 * double(s[0] * s[1]); };
    return {add, elu, swiglu};
}

}  // namespace ultrascale::kernels
