// Can a linear's communication hide under its computation? Computes the playbook's ratio with this
// machine's rates.
//
// A column linear (h -> h) of N tokens with sequence parallelism: every rank receives (tp - 1)/tp
// of the N h elements and computes 2 N h h/tp FLOP.
//
//     communication   N h (tp-1)/tp elements / bandwidth    tp - 1    FLOP/s
//     ------------- = ---------------------------------- = ------ * ---------
//      computation        2 N h h/tp FLOP / (FLOP/s)          2 h    bandwidth
//
// If the ratio is below 1, the GEMM hides the communication. It does not depend on the batch; it
// grows with tp and with every GPU generation that computes faster without a faster network.
#pragma once

#include "core/device.h"
#include "lab/measure/measure.h"
#include "model/llama.h"

namespace ultrascale::tensor_parallel {

// All ranks of the group call it. It times an all-gather of (tokens, h) and the GEMM (tokens, h) x
// (h, h/tp), one after the other; and it evaluates the formula with the machine's rates, measured
// with other sizes (a larger all-gather, a square GEMM).
inline void print_overlap_ratio(Report& report, const Communicator& group, int64_t tokens,
                                int64_t h, DType dtype) {
    const int64_t n = group.size(), rows = tokens / n * n, e = dtype_bytes(dtype);
    if (n == 1 || rows == 0 || h / n == 0) return;
    const auto tensor = [&](Shape shape, std::shared_ptr<Allocator> from = nullptr) {
        return Tensor::zeros(std::move(shape), dtype, Memory::workspace, std::move(from));
    };
    const auto gather_seconds = [&](int64_t whole_rows) {
        const Tensor whole = tensor({whole_rows, h}, group.symmetric_memory()),
                     mine = tensor({whole_rows / n, h});
        return measure_call(group, [&] { group.all_gather(whole, mine); });
    };
    const Tensor x = tensor({rows, h}), w = tensor({h / n, h}), y = tensor({rows, h / n});
    const double gather = gather_seconds(rows),
                 gemm = measure_call(
                     group, [&] { ops::matmul(y, x, ops::Transpose::no, w, ops::Transpose::yes); });
    // The rates: of an all-gather four times as large, and of a square matrix product.
    const double share = double(n - 1) / double(n),
                 bandwidth = 4 * double(rows * h) * share / gather_seconds(4 * rows);
    const double flops = ops::measure_matmul_rate(dtype, device_is_gpu() ? 8192 : 512);
    const double formula = double(n - 1) / (2 * double(h)) * flops / bandwidth;
    print(fmt::format(
        "\noverlap ratio of a linear ({} -> {}) of {} tokens: communication / computation", h, h,
        rows));
    print(
        fmt::format("  formula    (tp-1)/(2h) * FLOP/s / bandwidth = {} / {} * {:.4g} TFLOP/s / "
                    "{:.4g} Gelement/s",
                    n - 1, 2 * h, flops / 1e12, bandwidth / 1e9));
    print(fmt::format("             = {:.3g}   (the bandwidth is {:.4g} GB/s)", formula,
                      bandwidth * double(e) / 1e9));
    print(fmt::format("  measured   all-gather {:.1f} us / GEMM {:.1f} us = {:.3g}{}", gather * 1e6,
                      gemm * 1e6, gather / gemm, gather < gemm ? "" : ": the GEMM cannot hide it"));
    report.value("overlap_ratio", "formula", formula);
    report.value("overlap_ratio", "measured", gather / gemm);
}

}  // namespace ultrascale::tensor_parallel
