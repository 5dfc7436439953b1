// --compare: measures the alternatives for one choice, one after the other on the same data.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/random.h"
#include "lab/measure/measure.h"
#include "lab/predict/estimate.h"
#include "train/run.h"

namespace ultrascale::single_gpu {

// Compares attention alone, forward and backward on one sequence: with the T x T matrix (naive) and
// in tiles (flash). Its memory is everything that a call holds (activations and workspace) except
// for q, k, v and the incoming gradient.
inline void compare_attention(const Options& options, const StepShape& shape) {
    const LlamaConfig& c = shape.config;
    Report report("00_single_gpu", options, shape, 0);
    print(fmt::format("attention of one sequence, H {} K {} D {}, {}: forward and backward",
                      c.heads, c.kv_heads, c.head_dim, dtype_name(shape.model.dtype)));
    print(fmt::format("  {:>6}  {:>12} {:>10}  {:>12} {:>10}  {:>8} {:>8}  {}", "T", "naive memory",
                      "ms", "flash memory", "ms", "memory", "time", "gradients differ"));
    for (int64_t T = 128; T <= std::max<int64_t>(shape.seq, 2048); T *= 2) {
        const auto draw = [&](const char* name, int64_t heads) {
            std::vector<float> values(size_t(T * heads * c.head_dim));
            Random(1, name).normals(0, values);
            Tensor t =
                Tensor::empty({1, T, heads, c.head_dim}, shape.model.dtype, Memory::activation);
            ops::copy(t, Tensor::from_host<float>(values, t.shape(), Memory::workspace));
            return t;
        };
        const Tensor q = draw("q", c.heads), k = draw("k", c.kv_heads), v = draw("v", c.kv_heads),
                     dout = draw("dout", c.heads);
        const Batch batch{};
        std::vector<std::vector<float>> dq;
        std::vector<double> seconds;
        std::vector<int64_t> bytes;
        FlashAttention flash;
        NaiveAttention naive(false);
        for (AttentionCore* attention :
             {static_cast<AttentionCore*>(&naive), static_cast<AttentionCore*>(&flash)}) {
            const int64_t held = total(memory_now());
            memory_reset_peak();
            AttentionCore::Gradients grads;
            seconds.push_back(measure_call(Communicator::world(), [&] {
                grads = {};
                Context context{.batch = batch};
                Saved saved;
                attention->forward(q, k, v, saved, context);
                grads = attention->backward(dout, saved, context);
            }));
            bytes.push_back(total(memory_at_peak()) - held);
            dq.push_back(grads.dq.to_host_float());
        }
        double difference = 0, size = 0;
        for (size_t i = 0; i < dq[0].size(); ++i)
            difference += std::pow(dq[0][i] - dq[1][i], 2), size += std::pow(dq[0][i], 2);
        print(fmt::format(
            "  {:>6}  {:>12} {:>10.2f}  {:>12} {:>10.2f}  {:>7.1f}x {:>7.2f}x  {:.1e}", T,
            format_bytes(double(bytes[0])), seconds[0] * 1e3, format_bytes(double(bytes[1])),
            seconds[1] * 1e3, double(bytes[0]) / double(bytes[1]), seconds[0] / seconds[1],
            std::sqrt(difference / size)));
        report.row({{"seq", T},
                    {"naive_bytes", bytes[0]},
                    {"naive_ms", seconds[0] * 1e3},
                    {"flash_bytes", bytes[1]},
                    {"flash_ms", seconds[1] * 1e3},
                    {"gradient_difference", std::sqrt(difference / size)}});
    }
    report.finish();
}

// Runs forward and backward of one micro-batch with each kind of recomputation and attention.
// Returns whether the gradient is the same, bit by bit, with and without recomputation.
inline bool compare_recomputation(const Options& options, const StepShape& shape) {
    const TokenFile file(options.data_path(), shape.config.vocab);
    const DataLoader loader(file, data_options(options, shape));
    struct Row {
        const char* name;
        AttentionKind attention;
        Recompute::Kind recompute;
    };
    const Row rows[] = {{"T x T, none", AttentionKind::naive, Recompute::none},
                        {"T x T, selective", AttentionKind::naive, Recompute::selective},
                        {"T x T, full", AttentionKind::naive, Recompute::full},
                        {"tiles, none", AttentionKind::flash, Recompute::none},
                        {"tiles, full", AttentionKind::flash, Recompute::full}};
    const DevicePeak peak = options.peak_tflops > 0
                                ? DevicePeak{options.peak_tflops * 1e12, "given"}
                                : device_peak(options.dtype);
    print(fmt::format("recomputation: forward and backward of {} x {} tokens", shape.micro_batch,
                      shape.seq));
    print(fmt::format("MFU and HFU are relative to {:.3g} TFLOP/s ({})", peak.flops / 1e12,
                      peak.source));
    Report report("00_single_gpu", options, shape, 0);
    print(fmt::format("  {:<20} {:>10} {:>10} {:>6} {:>9} {:>10} {:>6} {:>6}  {}",
                      "attention, recompute", "peak act.", "predicted", "saved", "ms", "extra FLOP",
                      "MFU", "HFU", "gradient"));
    const DataSlice slice{.micro_batch = shape.micro_batch};
    std::vector<float> gradient;
    int64_t most = 0;
    bool equal = true;
    for (const Row& row : rows) {
        StepShape s = shape;
        s.model.attention = row.attention;
        s.model.recompute = row.recompute;
        Llama model(s.config, s.model);
        model.parameters().allocate_values(options.dtype);
        model.parameters().allocate_grads(options.grad_dtype());
        load_or_initialize(options, model.parameters());
        const double seconds = measure(loader, slice, s.micro_batch, 3, [&](Step& step) {
                                   model.parameters().begin_gradients();
                                   for (MicroBatch micro_batch : step.micro_batches()) {
                                       Saved saved;
                                       model.forward({}, saved, micro_batch);
                                       model.backward({}, saved, micro_batch);
                                   }
                               }).step_seconds;
        const int64_t measured = memory_peak_by_category()[int(Memory::activation)];
        std::vector<float> got = model.parameters().flat_grads().to_host_float();
        const bool first = row.recompute == Recompute::none;
        const bool same =
            first || std::equal(got.begin(), got.end(), gradient.begin(), gradient.end());
        equal = equal && same;
        if (first) gradient = std::move(got), most = measured;
        const Prediction prediction = predict_one_device(s, model.parameters().local_numel());
        const double tokens = double(s.micro_batch * s.seq),
                     flops = prediction.flops_per_token * tokens,
                     extra = prediction.recomputed_flops_per_token * tokens;
        const int64_t predicted = prediction.memory.peak_activations;
        const double mfu = flops / seconds / peak.flops,
                     hfu = (flops + extra) / seconds / peak.flops;
        print(fmt::format(
            "  {:<20} {:>10} {:>10} {:>5.1f}% {:>9.1f} {:>9.1f}% {:>5.1f}% {:>5.1f}%  {}", row.name,
            format_bytes(double(measured)), format_bytes(double(predicted)),
            100 * (1 - double(measured) / double(most)), seconds * 1e3, 100 * extra / flops,
            100 * mfu, 100 * hfu,
            first  ? "-"
            : same ? "same bits"
                   : "DIFFERS"));
        report.row({{"variant", row.name},
                    {"peak_activation_bytes", measured},
                    {"predicted_peak_activation_bytes", predicted},
                    {"ms", seconds * 1e3},
                    {"extra_flops", extra / flops},
                    {"mfu", mfu},
                    {"hfu", hfu},
                    {"same_gradient", same}});
    }
    report.finish();
    return equal;
}

}  // namespace ultrascale::single_gpu
