// A line of a benchmark: an operation's time and rate compared with what is possible.
#pragma once

#include <cstdio>
#include <functional>

#include "core/ops.h"
#include "lab/report/median_seconds.h"

namespace ultrascale {

// Compares a product with another one of as many FLOPs: TFLOP/s of both, and their ratio.
inline void report_product(const char* name, double flops, const std::function<void()>& product,
                           const std::function<void()>& other) {
    const std::vector<double> seconds = median_seconds({product, other});
    std::printf("%-42s %9.4f %9.1f %9.1f %7.1f %%\n", name, seconds[0] * 1e3,
                flops / seconds[0] / 1e12, flops / seconds[1] / 1e12,
                100 * seconds[1] / seconds[0]);
    std::fflush(stdout);
}

// Compares an operation that moves bytes with a plain copy of as many: GB/s of both, and their
// ratio.
inline void report_bytes(const char* name, double bytes, const std::function<void()>& call) {
    const int64_t n = int64_t(bytes / 8);  // read, and written: fp32
    const Tensor from = Tensor::zeros({n}, DType::fp32, Memory::workspace),
                 to = Tensor::zeros({n}, DType::fp32, Memory::workspace);
    const std::vector<double> seconds = median_seconds({call, [&] { ops::copy(to, from); }});
    std::printf("%-42s %9.4f %9.1f %9.1f %7.1f %%\n", name, seconds[0] * 1e3,
                bytes / seconds[0] / 1e9, bytes / seconds[1] / 1e9, 100 * seconds[1] / seconds[0]);
    std::fflush(stdout);
}

}  // namespace ultrascale
