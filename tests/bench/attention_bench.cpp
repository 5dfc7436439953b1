// How fast attention is: build/<backend>/attention_bench
//
// Causal, 16,384 tokens (1,024 on the CPU) of bf16 and 2,048 / D heads, in sequences of growing length. FLOPs as the field
// counts them: 4 B H T^2 D forward, half of it causal, and 2.5 times that backward (five products for two).
#include <cstdio>
#include <vector>

#include "comm.h"
#include "median_seconds.h"
#include "ops.h"
#include "random_tensor.h"

using namespace ultrascale;

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
            const auto drawn = [&](unsigned seed) { return random_tensor({B, T, H, D}, DType::bf16, seed); };
            const Tensor q = drawn(1), k = drawn(2), v = drawn(3), dout = drawn(4), o = drawn(5), dq = drawn(6), dk = drawn(7),
                         dv = drawn(8);
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
