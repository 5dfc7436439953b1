// How fast attention is: build/<backend>/attention_bench
//
// Causal, 16,384 tokens (1,024 on the CPU) of bf16 and 2,048 / D heads, in sequences of growing length. FLOPs as the field
// counts them: 4 B H T^2 D forward, half of it causal, and 2.5 times that backward (five products for two).
#include <algorithm>
#include <cstdio>
#include <functional>
#include <vector>

#include "comm.h"
#include "median_seconds.h"
#include "ops.h"

using namespace ultrascale;

static Tensor drawn(Shape shape) {
    std::vector<bf16> values(size_t(numel(shape)));
    uint32_t state = 1;
    for (bf16& value : values) {
        state = state * 1664525u + 1013904223u;
        value = bf16(float(state >> 8) / float(1 << 23) - 1);
    }
    return Tensor::from_host<bf16>(values, shape, Memory::activation);
}

int main() {
    Communicator::world();
#ifdef ULTRASCALE_CUDA
    const int64_t tokens = 16384;
#else
    const int64_t tokens = 1024;
#endif
    std::printf("%4s %6s   %12s %8s   %12s %8s\n", "D", "T", "forward ms", "TFLOP/s", "backward ms", "TFLOP/s");
    for (int64_t D : {64, 128})
        for (int64_t T = tokens / 8; T <= tokens; T *= 2) {
            const int64_t B = tokens / T, H = 2048 / D;
            const Tensor q = drawn({B, T, H, D}), k = drawn({B, T, H, D}), v = drawn({B, T, H, D}), dout = drawn({B, T, H, D});
            const Tensor o = drawn({B, T, H, D}), dq = drawn({B, T, H, D}), dk = drawn({B, T, H, D}), dv = drawn({B, T, H, D});
            const Tensor lse = Tensor::zeros({B, H, T}, DType::fp32, Memory::activation),
                         delta = Tensor::zeros({B, H, T}, DType::fp32, Memory::activation);
            const auto forward = [&] { ops::attention_forward(o, lse, q, k, v, {}); };
            const auto backward = [&] {
                ops::attention_delta(delta, dout, o);
                ops::attention_backward(dq, dk, dv, dout, q, k, v, lse, delta, {});
            };
            const std::vector<double> seconds = median_seconds({forward, backward});
            const double flops = 4.0 * double(B * H) * double(T) * double(T) * double(D) / 2;
            std::printf("%4d %6d   %12.3f %8.1f   %12.3f %8.1f\n", int(D), int(T), seconds[0] * 1e3, flops / seconds[0] / 1e12,
                        seconds[1] * 1e3, 2.5 * flops / seconds[1] / 1e12);
        }
    finalize_communication();
}
