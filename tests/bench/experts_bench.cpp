// Measures what a layer of experts costs, step by step: build/cuda/experts_bench
//
// 16,384 tokens in bf16 (512 on the CPU) are routed by random logits to 6 of 64 experts of F 1408
// at hidden 2048, and to 2 of 8 experts of F 14336 at hidden 4096 (on the CPU a sixteenth of
// these). The grouped products, with groups as routed and with groups of equal size, are compared
// with one dense product of as many FLOPs, in TFLOP/s. The other steps move bytes: each input is
// read once and each output written once. Their bandwidth is compared with that of a plain copy of
// as many bytes.
#include "06_expert_parallel/kernels/ops_experts.h"
#include "beside.h"
#include "comm/comm.h"
#include "core/device.h"
#include "core/random_tensor.h"

using namespace ultrascale;

namespace {

const bool on_gpu = device_is_gpu();
const int64_t N = on_gpu ? 16384 : 512, divisor = on_gpu ? 1 : 16;

double bytes_of(std::initializer_list<Tensor> tensors) {
    double sum = 0;
    for (const Tensor& t : tensors) sum += double(t.bytes());
    return sum;
}
Tensor numbers(Shape shape, DType dtype) {
    return Tensor::empty(std::move(shape), dtype, Memory::workspace);
}

// Measures one of a layer's two products, W (E, out, in), in its three directions.
void products(const char* name, const Tensor& counts, int64_t R, int64_t out, int64_t in) {
    const int64_t E = counts.numel();
    const Tensor x = random_tensor({R, in}), y = random_tensor({R, out}),
                 y_out = numbers({R, out}, DType::bf16), x_out = numbers({R, in}, DType::bf16),
                 w = random_tensor({E, out, in}), dw = random_tensor({E, out, in}),
                 one = w.slice(0, 1).view({out, in}), dw_one = dw.slice(0, 1).view({out, in}),
                 sums = random_tensor({E, out, in}, DType::fp32),
                 sums_one = sums.slice(0, 1).view({out, in});
    const double flops = 2.0 * double(R) * double(out) * double(in);
    const auto line = [&](const char* what, const auto& grouped, const auto& dense) {
        char text[64];
        std::snprintf(text, sizeof text, "%s %ld x %ld, %s", name, long(out), long(in), what);
        report_product(text, flops, grouped, dense);
    };
    const auto no = ops::Transpose::no, yes = ops::Transpose::yes;
    line(
        "y", [&] { ops::grouped_matmul(y_out, x, w, counts); },
        [&] { ops::matmul(y_out, x, no, one, yes); });
    line(
        "dx", [&] { ops::grouped_matmul_backward_input(x_out, y, w, counts); },
        [&] { ops::matmul(x_out, y, no, one, no); });
    line(
        "dW", [&] { ops::grouped_matmul_backward_weight(dw, y, x, counts); },
        [&] { ops::matmul(dw_one, y, yes, x, no); });
    line(
        "dW fp32 +=", [&] { ops::grouped_matmul_backward_weight(sums, y, x, counts, sums); },
        [&] { ops::matmul(sums_one, y, yes, x, no, sums_one); });
}

void layer(int64_t E, int64_t k, int64_t h, int64_t F) {
    h /= divisor, F /= divisor;
    const int64_t R = N * k;
    std::printf("\n%ld experts, %ld a token, hidden %ld, F %ld\n", long(E), long(k), long(h),
                long(F));
    const Tensor logits = random_tensor({N, E}, DType::fp32), scores = numbers({N, E}, DType::fp32),
                 experts = numbers({N, k}, DType::int32), weights = numbers({N, k}, DType::fp32),
                 dweights = numbers({N, k}, DType::fp32), dlogits = numbers({N, E}, DType::fp32),
                 counts = numbers({E}, DType::int32), order = numbers({R}, DType::int32),
                 row_map = numbers({N, k}, DType::int32);
    const ops::RouterSettings router = {.top_k = k};
    report_bytes("router_forward", bytes_of({logits, scores, experts, weights}),
                 [&] { ops::router_forward(experts, weights, scores, logits, {}, router); });
    ops::copy(dweights, weights);
    report_bytes("router_backward", bytes_of({dweights, scores, experts, dlogits}),
                 [&] { ops::router_backward(dlogits, dweights, scores, experts, router); });
    report_bytes("sort_by_expert", bytes_of({experts, experts, order, row_map}),
                 [&] { ops::sort_by_expert(counts, order, row_map, experts); });
    {
        const Tensor x = random_tensor({N, h}), rows = random_tensor({R, h});
        report_bytes("scatter_rows", bytes_of({x, rows}),
                     [&] { ops::scatter_rows(rows, x, row_map); });
        report_bytes("sum_rows", bytes_of({x, rows}), [&] { ops::sum_rows(x, rows, row_map); });
        report_bytes("sum_rows, residual", bytes_of({x, x, rows}),
                     [&] { ops::sum_rows(x, rows, row_map, x); });
    }
    {
        const Tensor gate_up = random_tensor({R, 2 * F}), d = random_tensor({R, 2 * F}),
                     out = random_tensor({R, F}), w = weights.view({R}), dw = dweights.view({R});
        report_bytes("swiglu_forward weighted", bytes_of({gate_up, out}),
                     [&] { ops::swiglu_forward(out, gate_up, w); });
        report_bytes("swiglu_backward weighted", bytes_of({gate_up, out, out, d}),
                     [&] { ops::swiglu_backward(d, out, gate_up, w, dw); });
    }
    products("gate, up", counts, R, 2 * F, h);
    products("down", counts, R, h, F);
    // A group's last tile of rows is rarely full; with groups of equal size nothing is lost there.
    const std::vector<int32_t> even(size_t(E), int32_t(R / E));
    const Tensor even_counts = Tensor::from_host<int32_t>(even, {E}, Memory::workspace);
    products("even gate, up", even_counts, R, 2 * F, h);
    products("even down", even_counts, R, h, F);
}

}  // namespace

int main() {
    Communicator::world();
    std::printf("%s, %ld tokens\n%-42s %9s %9s %9s %9s\n", device_description().c_str(), long(N),
                "", "median ms", "rate", "beside", "of it");
    layer(64, 6, 2048, 1408);
    layer(8, 2, 4096, 14336);
    finalize_communication();
}
