// What a step's time depends on besides the layout: a device and its links, described by a few
// numbers, and the time that follows from these for one operation.
//
//     product (M, K) x (K, N)   2 M N K / (peak * share) * (1 + half/M) (1 + half/N) (1 + half/K)
//     attention                 FLOPs / (peak * its own share), forward and backward
//     all else                  bytes read and written / memory_rate, and `operation` for each call
//     communication             links.h
//
// A product of small matrices is slow because its tiles do not fill the device: if one side is
// `half` and the other two are long, it takes twice as long as its FLOPs would.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "links.h"

namespace ultrascale::five_d {

struct Hardware {
    std::string name;
    std::optional<DType> dtype;  // of peak and shares; none: the file does not say
    double peak = 0;             // FLOP/s in the dtype, dense, by the data sheet
    double fp32_peak = 0;        // a preset's peak in fp32, without tensor cores
    double product_share = 0;    // the share of the peak that large products reach
    double product_half = 0;     // rows or columns, see above
    double fp8_times = 0;        // how many times as fast products are in fp8; 0: it has none
    double attention_forward = 0, attention_backward = 0;  // shares of the peak
    double memory_rate = 0, update_rate = 0;  // bytes/s, read and written; of AdamW's update
    double operation = 0;                     // seconds that every call costs besides
    Nodes nodes = {.ranks = 8, .crossing = Crossing::rings};
    LinkRate inside = {}, between = {};  // in a node; from node to node
    double memory = 0;                   // bytes of a device
    double process = 0;  // bytes that a process holds besides its tensors: contexts, libraries
    // Properties of the program rather than the device: the share of tensor parallelism's
    // communication that is hidden, from 0 to 1; and the bytes that the loss reads and writes for
    // each logit.
    double tensor_hidden = 0, logit_bytes = 10;

    // Returns the same device for a training in this dtype. Throws UserError if nothing is known
    // about this dtype. In fp32 our products run without tensor cores, not in TF32
    // (common/cuda/ops_matmul.cpp): they reach three quarters of that peak (07's MEASURED.md).
    // Attention's shares are those of bf16: they have not been measured in fp32.
    Hardware in(DType wanted) const {
        if (!dtype || *dtype == wanted) return *this;
        if (wanted != DType::fp32 || fp32_peak == 0)
            user_error("--hardware {}: it was measured in {}; --calibrate it with --dtype {} too",
                       name, dtype_name(*dtype), dtype_name(wanted));
        Hardware h = *this;
        h.dtype = wanted, h.peak = fp32_peak, h.product_share = 0.75, h.fp8_times = 0;
        return h;
    }
    // Returns the seconds of a product (M, K) x (K, N), for `grouped` experts with M rows each.
    double product(double M, double N, double K, double grouped = 1) const {
        return grouped * 2 * M * N * K / (peak * product_share) * (1 + product_half / M) *
               (1 + product_half / N) * (1 + product_half / K);
    }
    // Returns the seconds of so many calls that read and write so many bytes in all.
    double moved(double bytes, double calls) const {
        return bytes / memory_rate + calls * operation;
    }
    Links links() const { return {nodes, inside, between}; }
};

// The presets. Peaks and memory of a device are from the data sheets (H100, H200 and A100 SXM;
// H800: NVLink cut to 400 GB/s). h100's product_share is fitted by --published (published.h): it is
// what products reach in a whole training at a power limit, which is less than one product reaches
// alone. The rates of fp8 products, attention, copies and the loss are one H200's (MEASURED.md of
// 02, 04 and 07); the other chips get the same shares of their own peaks, and nothing has been
// fitted to them. Nothing of tensor parallelism is hidden, as in a run without --tp-overlap. h100's
// product_share includes the slowdown of products by communication under them.
inline std::vector<Hardware> hardware_presets() {
    Hardware h100{.name = "h100",
                  .dtype = DType::bf16,
                  .peak = 989.5e12,
                  .fp32_peak = 66.9e12,
                  .product_share = 0.58,
                  .product_half = 260,
                  .fp8_times = 1.9,
                  .attention_forward = 0.45,
                  .attention_backward = 0.38,
                  .memory_rate = 0.85 * 3.35e12,
                  .update_rate = 0.85 * 3.35e12,
                  .operation = 5e-6,
                  .inside = {360e9, 3e-6, 360e9, 3e-6},
                  .between = {48e9, 8e-6, 48e9, 8e-6},
                  .memory = 80e9,
                  .process = 1.37 * 1024 * 1024 * 1024,
                  .logit_bytes = 56};
    Hardware h200 = h100;
    h200.name = "h200", h200.memory = 141e9;
    h200.memory_rate = h200.update_rate = 4.25e12;
    Hardware a100 = h100;
    a100.name = "a100", a100.peak = 312e12, a100.fp32_peak = 19.5e12, a100.fp8_times = 0;
    a100.memory_rate = a100.update_rate = 0.85 * 2.04e12;
    a100.inside = {230e9, 3e-6, 230e9, 3e-6}, a100.between = {22e9, 8e-6, 22e9, 8e-6};
    Hardware h800 = h100;
    h800.name = "h800", h800.inside = {160e9, 3e-6, 160e9, 3e-6};
    return {h100, h200, a100, h800};
}

// Returns the text of the file that --calibrate writes and --hardware reads.
std::string file_of(const Hardware& hardware);

// Returns the hardware of this name: a preset or such a file. Throws UserError if it is neither.
Hardware find_hardware(const std::string& name);

}  // namespace ultrascale::five_d
