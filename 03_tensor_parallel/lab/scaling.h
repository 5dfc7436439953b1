// --demo scaling: a model on tp = 1 to 32 GPUs by formula: how fast, and how much memory. Nothing
// is run. Two things end tensor parallelism: the network, where a group no longer fits into one
// node of 8 GPUs, and what every rank keeps whole.
//
//     step time a token   t(tp) = F / (tp R)  +  (tp-1)/tp * C / B      F FLOPs, C bytes a token
//     a GPU's rate        F / (tp t)  =  1 / ( 1/R  +  (tp-1) C / (F B) )
//
// R is the rate of a GPU that does not communicate, B the rate at which a rank sends: B_node inside
// a node, and B_network where the group reaches further, since all its messages go round one ring.
// C is what a token's h numbers of e bytes cost in 8 all-gathers and reduce-scatters a layer (4
// forward, 4 backward): C = 8 L h e. Nothing is hidden.
//
// The three rates come from a measurement: the playbook's, of a 3.57B model at 4,096 tokens on
// H100s (figure "Throughput Scaling with TP/SP"). Its rows of tp 2, 8 and 16 give R, B_node and
// B_network; the rows of tp 4 and 32 show how good the formula is.
//
// The A3 ratio is the playbook's appendix A3 for a linear: communication / computation =
// (tp-1)/(2h) * R / (numbers sent/s). Above 1 there is more to send than a product can hide.
#pragma once

#include <array>
#include <vector>

#include "predict.h"

namespace ultrascale::tensor_parallel {

struct PublishedRate {
    int tp;
    double flops;  // of a GPU, per second
};
inline constexpr std::array<PublishedRate, 5> playbook_rates = {
    {{2, 364e12}, {4, 346e12}, {8, 280e12}, {16, 158e12}, {32, 93e12}}};
inline StepShape playbook_shape() {
    const LlamaConfig config{.layers = 28,
                             .hidden = 3072,
                             .heads = 32,
                             .kv_heads = 32,
                             .head_dim = 96,
                             .ffn = 8192,
                             .vocab = 131072,
                             .tied = true};
    return {.config = config, .model = {.dtype = DType::bf16}, .micro_batch = 1, .seq = 4096};
}

struct ClusterRates {
    double flops, in_node, in_network;  // R; B in bytes/s
    int node = 8;
    double sends(int64_t tp) const { return tp <= node ? in_node : in_network; }
};

// (tp-1) C / F: bytes that a rank sends for each FLOP of its share.
inline double bytes_per_flop(const StepShape& shape, int64_t tp) {
    const LlamaConfig& c = shape.config;
    const double C = double(8 * c.layers * c.hidden * dtype_bytes(shape.model.dtype)),
                 F = model_flops_per_token(c, parameter_count(c), shape.seq);
    return double(tp - 1) * C / F;
}
// FLOP/s of each GPU of a group, communication included.
inline double rate_of_gpu(const StepShape& shape, int64_t tp, const ClusterRates& rates) {
    return 1 / (1 / rates.flops + bytes_per_flop(shape, tp) / rates.sends(tp));
}

// The rates that rows 2, 8 and 16 have by the formula above, which is linear in 1/R and 1/B.
inline ClusterRates rates_of_playbook() {
    const StepShape shape = playbook_shape();
    const auto x = [&](int row) { return bytes_per_flop(shape, playbook_rates[size_t(row)].tp); };
    const auto y = [](int row) { return 1 / playbook_rates[size_t(row)].flops; };
    const double per_byte = (y(2) - y(0)) / (x(2) - x(0)), per_flop = y(0) - per_byte * x(0);
    return {1 / per_flop, 1 / per_byte, x(3) / (y(3) - per_flop)};
}

// Communication / computation of a linear h -> h whose ranks send `bandwidth` bytes/s.
inline double a3_ratio(double tp, double h, double flops, double bandwidth, double bytes) {
    return (tp - 1) / (2 * h) * flops / (bandwidth / bytes);
}

// The parameters of the rank that has the most: norms whole, key-value heads copied beyond tp = K.
inline int64_t parameters_of_rank(const LlamaConfig& c, int64_t tp) {
    const HeadSplit heads = split_heads(c, tp, 0);
    int64_t vocabulary = 0;
    for (int64_t r = 0; r < tp; ++r)
        vocabulary = std::max(vocabulary, vocabulary_shard(c.vocab, tp, r).size());
    const int64_t layer = 2 * c.hidden * (heads.q_rows.size() + heads.kv_rows.size()) +
                          3 * c.hidden * c.ffn / tp + 2 * c.hidden;
    return c.layers * layer + (c.tied ? 1 : 2) * vocabulary * c.hidden + c.hidden;
}

// The memory of a rank in bytes.
inline MemoryEstimate memory_of_rank(const StepShape& shape, int tp, bool sequence_parallel) {
    TensorOptions options;
    options.tp = tp, options.sequence_parallel = sequence_parallel && tp > 1;
    Prediction prediction;
    add_parameters(prediction, parameters_of_rank(shape.config, tp), shape);
    add_activations(prediction, local_sizes(shape, options, 0));
    return prediction.memory;
}

namespace scaling {

// Whether tp ranks can share the heads (3_attention_heads.h).
inline bool splits(const LlamaConfig& c, int64_t tp) {
    return c.heads % tp == 0 && (c.kv_heads % tp == 0 || tp % c.kv_heads == 0);
}

inline void print_speed(Report& report, const std::string& name, const StepShape& shape,
                        const ClusterRates& rates, bool published) {
    const double h = double(shape.config.hidden), e = double(dtype_bytes(shape.model.dtype));
    print(fmt::format("\n{}, {} tokens: speed{}", name, shape.seq,
                      published ? ", and what the playbook measured" : ""));
    print(fmt::format("  {:>4} {:>10} {:>9} {:>13} {:>14} {:>12}{}", "tp", "TFLOP/s", "of tp 1",
                      "communication", "A3: in a node", "in a network",
                      published ? "    measured  formula / that" : ""));
    size_t row = 0;
    for (int tp = 1; tp <= 32; tp *= 2) {
        if (!splits(shape.config, tp)) break;
        const double rate = rate_of_gpu(shape, tp, rates), alone = rates.flops;
        std::string beside;
        if (published && tp > 1) {
            const double measured = playbook_rates[row++].flops;
            beside = fmt::format("  {:>10.0f} {:>15.2f}", measured / 1e12, rate / measured);
        }
        if (tp == 2 * rates.node)
            print(fmt::format("  {} the group leaves the node", std::string(42, '-')));
        print(fmt::format("  {:>4} {:>10.0f} {:>7.0f} % {:>11.0f} % {:>14.2f} {:>12.2f}{}", tp,
                          rate / 1e12, 100 * rate / alone, 100 * (1 - rate / alone),
                          a3_ratio(tp, h, alone, rates.in_node, e),
                          a3_ratio(tp, h, alone, rates.in_network, e), beside));
        report.row({{"model", name},
                    {"tp", tp},
                    {"flops_per_second", rate},
                    {"a3_ratio", a3_ratio(tp, h, alone, rates.sends(tp), e)}});
    }
}

inline void print_memory(Report& report, const std::string& name, const StepShape& shape) {
    print(fmt::format("\n{}, {} x {} tokens, {}, gradients {}: memory of a rank in GiB", name,
                      shape.micro_batch, shape.seq, dtype_name(shape.model.dtype),
                      dtype_name(shape.grad_dtype)));
    print(fmt::format("  {:>4} {:>10} {:>10} {:>10} {:>16} {:>10} {:>9}  {}", "tp", "parameters",
                      "gradients", "optimizer", "activations: TP", "TP + SP", "all", "of 80 GB"));
    for (int tp = 1; tp <= 32; tp *= 2) {
        if (!splits(shape.config, tp)) break;
        const MemoryEstimate plain = memory_of_rank(shape, tp, false),
                             sp = memory_of_rank(shape, tp, true);
        const auto gib = [](int64_t bytes) { return double(bytes) / (1 << 30); };
        print(fmt::format("  {:>4} {:>10.1f} {:>10.1f} {:>10.1f} {:>16.1f} {:>10.1f} {:>9.1f}  {}",
                          tp, gib(sp.parameters), gib(sp.gradients), gib(sp.optimizer),
                          gib(plain.peak_activations), gib(sp.peak_activations), gib(sp.total()),
                          double(sp.total()) <= 80e9      ? "fits"
                          : double(plain.total()) <= 80e9 ? "fits without SP"
                                                          : "too much"));
        report.row({{"model", name},
                    {"tp", tp},
                    {"parameters_bytes", sp.parameters},
                    {"gradients_bytes", sp.gradients},
                    {"optimizer_bytes", sp.optimizer},
                    {"tp_activations_bytes", plain.peak_activations},
                    {"tp_sp_activations_bytes", sp.peak_activations}});
    }
}

}  // namespace scaling

// Rank 0 prints. `shape`: of the model that the options name.
inline void demo_scaling(const Options& options, const StepShape& shape) {
    const ClusterRates rates = rates_of_playbook();
    Report report("03_tensor_parallel", options, shape, 0);
    print(
        fmt::format("a GPU computes {:.0f} TFLOP/s and sends {:.0f} GB/s inside a node of {}, "
                    "{:.0f} GB/s beyond",
                    rates.flops / 1e12, rates.in_node / 1e9, rates.node, rates.in_network / 1e9));
    print("(the playbook's rows of tp 2, 8 and 16, by the formula in scaling.h)");
    scaling::print_speed(report, "the playbook's 3.57B", playbook_shape(), rates, true);
    scaling::print_speed(report, options.model_name(), shape, rates, false);
    scaling::print_memory(report, options.model_name(), shape);
    report.finish();
}

}  // namespace ultrascale::tensor_parallel
