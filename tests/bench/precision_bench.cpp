// What 8 bits cost and save, step by step: build/cuda/precision_bench
//
// Llama-3-8B's sizes at 8,192 tokens in bf16 (on the CPU a sixteenth of each). Quantisation, alone
// and fused into what comes before it, and its bandwidth beside that of a plain copy of as many
// bytes: each input read once, or twice if the line says so, each output written once. Then the
// three products of a layer's linears in 8 bits, in TFLOP/s, each beside the same product in bf16:
// alone, and with the quantisation of what it multiplies.
#include "08_mixed_precision/kernels/ops_quantised.h"
#include "beside.h"
#include "comm/comm.h"
#include "core/device.h"
#include "core/random_tensor.h"

using namespace ultrascale;

namespace {

using enum ops::ScaleGroup;
using ops::Quantised;
using ops::ScaleGroup;
using ops::Scaling;

const int64_t divisor = device_is_gpu() ? 1 : 16;
const int64_t N = 8192 / divisor, h = 4096 / divisor, F = 14336 / divisor;

Tensor numbers(Shape shape, DType dtype) {
    return Tensor::empty(std::move(shape), dtype, Memory::workspace);
}
Quantised eight_bits(int64_t rows, int64_t cols, ScaleGroup group, DType dtype = DType::e4m3) {
    return ops::empty_quantised(rows, cols, dtype, group, Memory::workspace);
}
double bytes(const Quantised& q) { return double(q.values.bytes() + q.scales.bytes()); }

const char* name_of(ScaleGroup group) {
    return group == tensor ? "tensor" : group == row ? "row" : group == tile ? "tile" : "block";
}
// A scale of the whole tensor is known only when all of its numbers have been read; unless it is
// given, they must be read again to be rounded.
bool reads_twice(const Scaling& s) { return s.group == tensor && !s.given; }
double bytes_read(const Scaling& s, const Tensor& x) {
    return double(x.bytes()) * (reads_twice(s) ? 2 : 1);
}
// The line's words about the scale.
const char* kind_of(const Scaling& s) {
    return s.given ? "given" : reads_twice(s) ? "tensor, 2 reads" : name_of(s.group);
}
template <class... Words>
const char* line(const char* format, Words... words) {
    static char text[64];
    std::snprintf(text, sizeof text, format, words...);
    return text;
}

void quantisation() {
    const Tensor x = random_tensor({N, h}), back = numbers({N, h}, DType::bf16),
                 amax = Tensor::zeros({1}, DType::fp32, Memory::workspace);
    for (const Scaling& s : {Scaling{.given = true}, {}, {row}, {tile}, {block}}) {
        const Quantised y = eight_bits(N, h, s.group);
        Quantised t = eight_bits(h, N, s.group);
        if (s.group == tensor) t.scales = y.scales;
        ops::quantise(y, {}, x, {.group = s.group});
        const double in = bytes_read(s, x);
        const char* const kind = kind_of(s);
        report_bytes(line("quantise %s", kind), in + bytes(y), [&] { ops::quantise(y, {}, x, s); });
        report_bytes(line("quantise %s, both ways", kind), in + bytes(y) + bytes(t),
                     [&] { ops::quantise(y, t, x, s); });
        if (s.given) continue;
        report_bytes(line("transpose_quantised %s", name_of(s.group)), bytes(y) + bytes(t),
                     [&] { ops::transpose_quantised(t, y, s); });
        report_bytes(line("dequantise %s", name_of(s.group)), bytes(y) + double(x.bytes()),
                     [&] { ops::dequantise(back, y, s.group); });
    }
    const Tensor packed = numbers({N, 3 * h / 8}, DType::int32),
                 scales = numbers({h / 128, N}, DType::fp32);
    const double all = double(x.bytes() + packed.bytes() + scales.bytes());
    report_bytes("pack_e5m6", all, [&] { ops::pack_e5m6(packed, scales, x); });
    report_bytes("unpack_e5m6", all, [&] { ops::unpack_e5m6(back, packed, scales); });
}

void fused() {
    const Tensor x = random_tensor({N, h}), weight = random_tensor({h}),
                 rstd = numbers({N}, DType::fp32), gate_up = random_tensor({N, 2 * F});
    for (const Scaling& s : {Scaling{.given = true}, {}, {row}, {tile}}) {
        const Quantised y = eight_bits(N, h, s.group), out = eight_bits(N, F, s.group);
        ops::quantise(y, {}, x, {.group = s.group});
        if (s.given) ops::fill(out.scales, 0.01f);
        const char* const kind = kind_of(s);
        report_bytes(line("rmsnorm_forward_quantised %s", kind),
                     bytes_read(s, x) + double(rstd.bytes()) + bytes(y),
                     [&] { ops::rmsnorm_forward_quantised(y, rstd, x, weight, 1e-5f, s); });
        report_bytes(line("swiglu_forward_quantised %s", kind), bytes_read(s, gate_up) + bytes(out),
                     [&] { ops::swiglu_forward_quantised(out, gate_up, s); });
    }
}

// y = x W^T, dx = dy W, dW += dy^T x of a linear (out, in).
void linear(const char* name, int64_t out, int64_t in) {
    using enum ops::Transpose;
    const Tensor x = random_tensor({N, in}), w = random_tensor({out, in}),
                 dy = random_tensor({N, out}), y = numbers({N, out}, DType::bf16),
                 dx = numbers({N, in}, DType::bf16), dw = random_tensor({out, in}, DType::fp32);
    const double flops = 2 * double(N) * double(out) * double(in);
    for (const auto& [x_group, w_group, fast] : {std::tuple(tensor, tensor, true),
                                                 {tensor, tensor, false},
                                                 {row, row, true},
                                                 {tile, block, false}}) {
        if (*ops::fp8_missing(x_group)) continue;
        const Quantised x8 = eight_bits(N, in, x_group), xt8 = eight_bits(in, N, x_group),
                        w8 = eight_bits(out, in, w_group), wt8 = eight_bits(in, out, w_group),
                        dy8 = eight_bits(N, out, x_group,
                                         x_group == tensor ? DType::e5m2 : DType::e4m3),
                        dyt8 = eight_bits(out, N, x_group, dy8.values.dtype());
        ops::quantise(w8, wt8, w, {w_group});
        ops::quantise(x8, xt8, x, {x_group});
        ops::quantise(dy8, dyt8, dy, {x_group});
        const char* const kind = x_group == tile ? "tiles" : x_group == row ? "rows" : "tensor";
        const char* const how = fast ? ", fast" : "";
        std::printf("%s, scales of %s%s\n", name, kind, how);
        const auto y_bf16 = [&] { ops::matmul(y, x, no, w, yes); };
        const auto dx_bf16 = [&] { ops::matmul(dx, dy, no, w, no); };
        const auto dw_bf16 = [&] { ops::matmul(dw, dy, yes, x, no, dw); };
        const auto y_fp8 = [&] { ops::matmul_fp8(y, x8, w8, {x_group, w_group, fast}); };
        const auto dx_fp8 = [&] { ops::matmul_fp8(dx, dy8, wt8, {x_group, w_group, fast}); };
        const auto dw_fp8 = [&] { ops::matmul_fp8(dw, dyt8, xt8, {x_group, x_group, fast}, dw); };
        report_product("  y", flops, y_fp8, y_bf16);
        report_product("  dx", flops, dx_fp8, dx_bf16);
        report_product("  dW, fp32 +=", flops, dw_fp8, dw_bf16);
        report_product(
            "  all, with quantisation", 3 * flops,
            [&] {
                ops::quantise(x8, xt8, x, {x_group});
                y_fp8();
                ops::quantise(dy8, dyt8, dy, {x_group});
                dx_fp8();
                dw_fp8();
            },
            [&] { y_bf16(), dx_bf16(), dw_bf16(); });
    }
}

}  // namespace

int main() {
    Communicator::world();
    std::printf("%s, %ld tokens\n%-42s %9s %9s %9s %9s\n", device_description().c_str(), long(N),
                "", "median ms", "GB/s", "copy GB/s", "of copy");
    quantisation();
    fused();
    std::printf("%-42s %9s %9s %9s %9s\n", "", "median ms", "TFLOP/s", "bf16", "of bf16");
    linear("q, k, v", 6144 / divisor, h);
    linear("o", h, h);
    linear("gate, up", 2 * F, h);
    linear("down", h, F);
    finalize_communication();
}
