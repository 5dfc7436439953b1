// Does a hop of the ring hide under the attention that runs meanwhile? That depends on how many
// tokens t a rank has: a hop sends the keys and values of t tokens, but attention computes with
// pairs of tokens, whose number grows with t^2.
//
//     a hop        2 K D e t bytes             / bandwidth      K kv heads, e bytes an element
//     attention    4 H D FLOP for each of      / (FLOP/s)       H heads
//                  t^2/2 pairs (contiguous: t^2, where all are seen)
//
//     it hides if  t >= FLOP/s / bandwidth * K e / H            (contiguous: half of it)
//
// The length of the sequence and the number of ranks do not matter, only t = s / cp. In backward a
// hop carries gradients, too: in 16 bits kv + 2 kv bytes, for 2.5 times as many FLOP, so t must be
// 1.2 times as large.
#pragma once

#include "../9_context_parallel.h"
#include "lab/measure/measure.h"
#include "lab/predict/estimate.h"
#include "lab/report/report.h"

namespace ultrascale::context_parallel {

class OverlapCondition {
public:
    OverlapCondition(ContextParallel& parallel, const StepShape& shape)
        : ring_(parallel.ring()),
          layout_(parallel.options().layout),
          H_(std::max<int64_t>(shape.config.heads / parallel.options().ulysses_degree(), 1)),
          K_(std::max<int64_t>(shape.config.kv_heads / parallel.options().ulysses_degree(), 1)),
          D_(shape.config.head_dim),
          dtype_(shape.model.dtype),
          own_(parallel.cut().length()) {}

    // All ranks of the ring call it. It evaluates the formula with this machine's rates, which it
    // measures with many tokens, and times hops and blocks of 64, 128, ... tokens until a hop
    // hides.
    void print_table(Report& report) {
        const int64_t fewest = 64, many = device_is_gpu() ? 32768 : 1024;
        const double flops = 4 * double(H_ * D_) * pairs(many) / block_seconds(many),
                     bandwidth = bytes(many) / hop_seconds(many),
                     formula = flops / bandwidth * double(K_ * dtype_bytes(dtype_)) / double(H_) *
                               (layout_ == Layout::contiguous ? 0.5 : 1);
        print("\noverlap in the ring: does a hop hide under the attention that runs meanwhile?");
        print(
            fmt::format("  formula    t >= FLOP/s / bandwidth * K e / H = {:.4g} GFLOP/s / {:.4g} "
                        "GB/s * {} * {} / {}{}",
                        flops / 1e9, bandwidth / 1e9, K_, dtype_bytes(dtype_), H_,
                        layout_ == Layout::contiguous ? " / 2" : ""));
        print(fmt::format("             = {:.0f} tokens a rank; this run has {}", formula, own_));
        std::string tokens = "  tokens    ", hops = "  hop, us   ", blocks = "  block, us ";
        int64_t hides = 0;
        for (int64_t t = fewest; t <= many && hides == 0; t *= 2) {
            const double hop = hop_seconds(t), block = block_seconds(t);
            tokens += fmt::format("{:>9}", t), hops += fmt::format("{:>9.1f}", hop * 1e6);
            blocks += fmt::format("{:>9.1f}", block * 1e6);
            if (hop < block) hides = t;
        }
        for (const std::string& line : {tokens, hops, blocks}) print(line);
        print(hides == fewest
                  ? fmt::format("  measured   a hop hides at {} tokens, the fewest tried", hides)
              : hides > 0 ? fmt::format("  measured   a hop hides from {} tokens on", hides)
                          : fmt::format("  measured   no hop hides up to {} tokens", many));
        report.value("overlap_condition", "formula_tokens", formula);
        report.value("overlap_condition", "measured_tokens", double(hides));
    }

private:
    // The pairs of t queries and t keys in a hop's block: a zig-zag and stripes see half of them.
    double pairs(int64_t t) const {
        return double(t) * double(t) / (layout_ == Layout::contiguous ? 1 : 2);
    }
    double bytes(int64_t t) const { return 2 * double(t * K_ * D_ * dtype_bytes(dtype_)); }

    Tensor tokens(int64_t t, int64_t heads) const {
        return Tensor::zeros({1, t, heads, D_}, dtype_, Memory::workspace);
    }
    double hop_seconds(int64_t t) {
        const Tensor k = tokens(t, K_), v = tokens(t, K_), next_k = tokens(t, K_),
                     next_v = tokens(t, K_);
        const int n = ring_.size(), to = (ring_.rank() + 1) % n, from = (ring_.rank() + n - 1) % n;
        return measure_call(ring_, [&] {
            ring_
                .send_recv({{Transfer::send, k, to},
                            {Transfer::send, v, to},
                            {Transfer::recv, next_k, from},
                            {Transfer::recv, next_v, from}},
                           stream_)
                .wait();
        });
    }
    double block_seconds(int64_t t) const {
        const bool striped = layout_ == Layout::striped;
        const int64_t keys = layout_ == Layout::zigzag ? t / 2 : t;
        const Tensor q = tokens(t, H_), k = tokens(keys, K_), v = tokens(keys, K_),
                     o = tokens(t, H_);
        const Tensor lse = Tensor::zeros({1, H_, t}, DType::fp32, Memory::workspace);
        return measure_call(ring_,
                            [&] { ops::attention_forward(o, lse, q, k, v, {.causal = striped}); });
    }

    const Communicator& ring_;
    Layout layout_;
    int64_t H_, K_, D_;
    DType dtype_;
    int64_t own_;  // tokens of each sequence on this rank
    Stream stream_{"ring"};
};

}  // namespace ultrascale::context_parallel
