// Measures how fast attention is: build/<backend>/attention_bench
//
// Attention is causal, in bf16. First 16,384 tokens (1,024 on the CPU) and 2,048 / D heads, in
// sequences of growing length; then one sequence of as many tokens, and on a GPU of four times as
// many, with 32 heads; then a sequence of a quarter of the tokens, with the heads of Llama-3-8B
// that each rank has under tensor parallelism over 1, 2, 4, 8 ranks. FLOPs are counted as usual: 4
// B H T^2 D forward, half of that if causal, and 2.5 times that backward (five products instead of
// two). A GPU's last lines are the result of a short script, measured before the GPU has reached
// its power limit.
#include <cstdio>
#include <functional>
#include <vector>

#include "comm/comm.h"
#include "core/device.h"
#include "core/ops.h"
#include "core/random_tensor.h"
#include "lab/report/median_seconds.h"

using namespace ultrascale;

struct Passes {
    std::function<void()> forward, backward;
    double flops;  // forward's
};

static Passes passes(int64_t B, int64_t T, int64_t H, int64_t K, int64_t D) {
    const auto drawn = [&](int64_t heads, unsigned seed) {
        return random_tensor({B, T, heads, D}, DType::bf16, seed);
    };
    const Tensor q = drawn(H, 1), k = drawn(K, 2), v = drawn(K, 3), dout = drawn(H, 4),
                 o = drawn(H, 5), dq = drawn(H, 6), dk = drawn(K, 7), dv = drawn(K, 8);
    const Tensor lse = Tensor::zeros({B, H, T}, DType::fp32, Memory::activation),
                 delta = Tensor::zeros({B, H, T}, DType::fp32, Memory::activation);
    return {[=] { ops::attention_forward(o, lse, q, k, v, {}); },
            [=] {
                ops::attention_delta(delta, dout, o);
                ops::attention_backward(dq, dk, dv, dout, q, k, v, lse, delta, {});
            },
            4.0 * double(B * H) * double(T) * double(T) * double(D) / 2};
}

// Prints one line of a table.
static void measure(int64_t B, int64_t T, int64_t H, int64_t K, int64_t D, bool rested = false) {
    const Passes of = passes(B, T, H, K, D);
    const std::vector<double> seconds =
        rested ? std::vector{rested_seconds(of.forward), rested_seconds(of.backward)}
               : median_seconds({of.forward, of.backward},
                                Turns{.settling_seconds = 0.4, .batch_seconds = 0.2});
    std::printf("%4d %6d %4d %4d   %12.3f %8.1f   %12.3f %8.1f\n", int(D), int(T), int(H), int(K),
                seconds[0] * 1e3, of.flops / seconds[0] / 1e12, seconds[1] * 1e3,
                2.5 * of.flops / seconds[1] / 1e12);
}

int main() {
    Communicator::world();
    const int64_t tokens = device_is_gpu() ? 16384 : 1024;
    std::printf("%4s %6s %4s %4s   %12s %8s   %12s %8s\n", "D", "T", "H", "K", "forward ms",
                "TFLOP/s", "backward ms", "TFLOP/s");
    for (int64_t D : {64, 128})
        for (int64_t T = tokens / 8; T <= tokens; T *= 2)
            measure(tokens / T, T, 2048 / D, 2048 / D, D);
    measure(1, tokens, 32, 32, 128);
    if (device_is_gpu()) measure(1, 4 * tokens, 32, 32, 128);
    for (int64_t tp : {1, 2, 4, 8}) measure(1, tokens / 4, 32 / tp, 8 / tp, 128);
    if (device_is_gpu()) {
        std::printf("After a rest, seven calls each, the median of the last five:\n");
        for (int64_t D : {64, 128}) measure(1, tokens, 32, 32, D, true);
    }
    finalize_communication();
}
