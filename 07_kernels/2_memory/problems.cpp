// Family 2: how a kernel accesses memory.
#include <cmath>

#include "../problem.h"

namespace ultrascale::kernels {

std::vector<Problem> memory() {
    Problem copy{.name = "strided copy", .dimensions = {"n", "stride"}};
    for (int64_t stride : {1, 2, 4, 8}) {
        copy.timed.push_back({1 << 26, stride});  // 256 MiB and more: far larger than L2
        copy.observed.push_back({1 << 13, stride});
    }
    copy.awkward = {{1, 1}, {33, 3}, {257, 5}};
    copy.inputs = [](const Sizes& s) { return std::vector<Input>{{{s[0] * s[1]}}}; };
    copy.output = [](const Sizes& s) { return Input{{s[0]}}; };
    copy.reference = [](const Sizes& s, const HostInputs& in, int64_t, double* out) {
        for (int64_t i = 0; i < s[0]; ++i) out[i] = in[0][size_t(i * s[1])];
    };
    copy.flops = [](const Sizes&) { return 0.0; };
    copy.bytes = [](const Sizes& s) { return 8.0 * double(s[0]); };

    Problem transpose{.name = "transpose", .dimensions = {"rows", "columns"}};
    transpose.timed = {{8192, 8192}};
    transpose.observed = {{256, 192}};
    transpose.awkward = {{1, 1}, {3, 5}, {33, 31}, {64, 100}, {130, 257}, {36, 132}};
    transpose.inputs = [](const Sizes& s) { return std::vector<Input>{{{s[0], s[1]}}}; };
    transpose.output = [](const Sizes& s) { return Input{{s[1], s[0]}}; };
    transpose.reference = [](const Sizes& s, const HostInputs& in, int64_t row, double* out) {
        for (int64_t i = 0; i < s[0]; ++i) out[i] = in[0][size_t(i * s[1] + row)];
    };
    transpose.flops = [](const Sizes&) { return 0.0; };
    transpose.bytes = [](const Sizes& s) { return 8.0 * double(s[0] * s[1]); };

    Problem sum{.name = "sum", .dimensions = {"n"}, .timed = {{1 << 26}}, .observed = {{1 << 16}}};
    sum.awkward = {{1}, {5}, {31}, {1000}, {4099}};
    sum.inputs = [](const Sizes& s) {
        return std::vector<Input>{{.shape = {s[0]}, .positive = true}};
    };
    sum.output = [](const Sizes&) { return Input{{1}}; };
    sum.reference = [](const Sizes&, const HostInputs& in, int64_t, double* out) {
        *out = 0;
        for (float x : in[0]) *out += x;
    };
    // 270,000 additions to one float, in any order; each is off by up to 6e-8 of the sum so far
    sum.tolerance = 1e-4;
    sum.flops = [](const Sizes& s) { return double(s[0]); };
    sum.bytes = [](const Sizes& s) { return 4.0 * double(s[0]); };

    Problem branches{
        .name = "branches", .dimensions = {"n"}, .timed = {{1 << 26}}, .observed = {{1 << 14}}};
    branches.awkward = {{1}, {33}, {1000}};
    branches.inputs = sum.inputs;
    branches.output = [](const Sizes& s) { return Input{{s[0]}}; };
    branches.reference = [](const Sizes& s, const HostInputs& in, int64_t, double* out) {
        // value <- 3/4 value + b, 256 times from 0: 4 b, to within (3/4)^256
        for (int64_t i = 0; i < s[0]; ++i)
            out[i] = (i % 2 == 0 ? 4 : -4) * double(in[0][size_t(i)]);
    };
    branches.flops = [](const Sizes& s) { return 512.0 * double(s[0]); };
    branches.bytes = [](const Sizes& s) { return 8.0 * double(s[0]); };
    return {copy, transpose, sum, branches};
}

}  // namespace ultrascale::kernels
