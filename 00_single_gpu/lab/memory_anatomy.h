// The sections of the report about memory: our formulas beside the playbook's, what forward keeps,
// the activations' peak, and memory over the first steps.
#pragma once

#include <algorithm>

#include "../1_what_forward_keeps.h"
#include "core/trace.h"
#include "lab/predict/estimate.h"
#include "lab/report/report.h"

namespace ultrascale::single_gpu {

inline void print_kept(const KeptByForward& kept) {
    print("\nwhat forward keeps for backward (one micro-batch)");
    int64_t sum = 0;
    for (const auto& [name, entry] : kept.entries()) sum += entry.bytes;
    for (const auto& [name, entry] : kept.entries())
        print(fmt::format("  {:<40} {:>3} x {:<20} {:>12} {:>5.1f} %", name, entry.tensors,
                          entry.shape, format_bytes(double(entry.bytes)),
                          100 * double(entry.bytes) / double(sum)));
    print(fmt::format("  {:<66} {:>12}", "sum", format_bytes(double(sum))));
}

// Prints what the layers of `shape` save, which recompute alike; `all`: they are the whole model.
inline void print_saved(const StepShape& shape, bool all) {
    const int64_t tokens = shape.micro_batch * shape.seq, layers = shape.config.layers;
    LocalSizes one_token = local_sizes(shape);
    one_token.sequences = one_token.stream_tokens = one_token.region_tokens = 1;
    const LayerActivations token = layer_activations(one_token);
    const bool full = shape.model.recompute == Recompute::full;
    const int64_t input = shape.config.hidden * dtype_bytes(shape.model.dtype),
                  per_layer = full ? input : int64_t(token.total());
    const char* book = full                                            ? "2"
                       : shape.model.recompute == Recompute::selective ? "34"
                                                                       : "(34 + 5 H s / h)";
    const std::string parts = full ? " (the layer's input only)"
                                   : fmt::format(" (norms {:.0f} + attention {:.0f} + mlp {:.0f})",
                                                 token.norms, token.attention, token.mlp),
                      L = all ? "L" : std::to_string(layers);
    print(fmt::format("  saved activations   {} s b x {} bytes{} = {}", L, per_layer, parts,
                      format_bytes(double(layers * tokens * per_layer))));
    if (token.masks > 0 && !full)
        print(fmt::format("                      (and {:.0f} for masks of the stream's dropout)",
                          token.masks));
    print(fmt::format("                      (playbook, GPT in bf16: {} s b h {} = {})", L, book,
                      format_bytes(book_activations(shape))));
}

inline void print_anatomy(const StepShape& shape) {
    const LlamaConfig& c = shape.config;
    const MemoryEstimate m = estimate_memory(shape);
    const int64_t n = parameter_count(c);
    print("\nmemory anatomy");
    if (c.latent)
        print(fmt::format(
            "  parameters   {} V h + L (2 h + h (Rq + Rkv + R) + Rq + Rkv + H ({} (P + R) +",
            c.tied ? "" : "2", c.latent.q_rank > 0 ? "Rq" : "h"));
    print(c.latent ? fmt::format("               Rkv (P + V) + V h) + 3 h F) + h = {}", n)
          : c.gpt
              ? fmt::format("  parameters   (V + {}) h + L (4 h^2 + 2 h F + 9 h + F) + 2 h = {}",
                            c.max_positions, n)
              : fmt::format(
                    "  parameters   {} V h + L (2 h + h (H + 2 K) D + H D h + 3 h F) + h = {}",
                    c.tied ? "" : "2", n));
    print(fmt::format(
        "  bytes a parameter   {} weight + {} gradient + {} optimizer = {}   (the playbook: {})",
        m.parameters / n, m.gradients / n, m.optimizer / n,
        (m.parameters + m.gradients + m.optimizer) / n, book_bytes_per_parameter(shape)));
    for (const auto kind : {Recompute::full, Recompute::selective, Recompute::none}) {
        StepShape alike = shape;
        alike.model.recompute = kind;
        alike.config.layers = shape.model.recompute.count(kind, c.layers);
        if (alike.config.layers > 0) print_saved(alike, alike.config.layers == c.layers);
    }
    const bool selective = shape.model.recompute.selective_layers > 0;
    if (selective && c.latent)
        print("  selective recomputation makes q, k and v of the latents again");
    else if (selective && shape.model.attention == AttentionKind::flash)
        print(
            "  selective recomputation drops attention's T x T tensors; flash attention (in tiles) "
            "has none");
}

// Prints when activations reach their peak and which tensors are held then.
inline void print_peak(const StepShape& shape) {
    const ActivationMoment peak = activation_peak(local_sizes(shape));
    print(fmt::format("\nthe activations' peak, {}: {}", peak.when, format_bytes(peak.bytes())));
    for (const auto& [what, bytes] : peak.terms)
        if (bytes > 0) print(fmt::format("  {:<68} {:>12}", what, format_bytes(bytes)));
}

// Memory over time during the first four steps, for the chart in the terminal and the picture of
// pictures.h: categories stacked; each column shows the highest moment of its time slice. The
// first step differs from the others because only its update allocates the optimizer's states.
class StepTimeline {
public:
    void begin() { begin_ = now_seconds(), memory_timeline_record(true); }
    void step_ended() {
        if (ends_.size() < 4) ends_.push_back(now_seconds());
        if (ends_.size() == 4 && !trace_recording()) memory_timeline_record(false);
    }
    void print_chart() const {
        constexpr std::string_view letter = "PGOACW";
        const std::vector<MemoryByCategory> columns = highest_by_column(width);
        int64_t highest = 1;
        for (const auto& column : columns) highest = std::max(highest, total(column));
        print(fmt::format("\nmemory during the first {}",
                          format_count(int64_t(ends_.size()), "step")));
        print(
            "  P parameters, G gradients, O optimizer, A activations, W workspace; + on the axis: "
            "a step ends");
        for (int row = height; row > 0; --row) {
            const double level = (double(row) - 0.5) / height * double(highest);
            std::string line;
            for (const auto& column : columns) {
                double sum = 0;
                char shown = ' ';
                for (size_t c = 0; c < letter.size() && shown == ' '; ++c)
                    if ((sum += double(column[c])) >= level) shown = letter[c];
                line += shown;
            }
            const bool labelled = row == height || row == height / 2;
            print(fmt::format("  {:>10} |{}",
                              labelled ? format_bytes(double(highest) * row / height) : "", line));
        }
        std::string axis(width, '-');
        for (double end : ends_) axis[size_t(std::min(width - 1, column_of(end, width)))] = '+';
        print(fmt::format("  {:>10} +{}", "", axis));
    }

    // When each step ended, in seconds since the first one began.
    std::vector<double> ends() const {
        std::vector<double> seconds = ends_;
        for (double& end : seconds) end -= begin_;
        return seconds;
    }
    std::vector<MemoryByCategory> highest_by_step() const {
        std::vector<MemoryByCategory> highest(ends_.size(), MemoryByCategory{});
        for (const MemoryPoint& point : memory_timeline()) {
            const auto step =
                size_t(std::ranges::lower_bound(ends_, point.seconds) - ends_.begin());
            if (step < highest.size() && total(point.bytes) > total(highest[step]))
                highest[step] = point.bytes;
        }
        return highest;
    }
    // Cuts the time into `columns` equal slices and returns the memory held at each one's highest
    // moment.
    std::vector<MemoryByCategory> highest_by_column(int columns) const {
        std::vector<MemoryByCategory> highest(size_t(columns), MemoryByCategory{});
        const auto raise = [&](int column, const MemoryByCategory& held) {
            if (total(held) > total(highest[size_t(column)])) highest[size_t(column)] = held;
        };
        MemoryByCategory held{};
        int column = 0;
        for (const MemoryPoint& point : memory_timeline()) {
            const int at = column_of(point.seconds, columns);
            for (; column < std::min(at, columns); ++column)
                raise(column, held);  // between points nothing changes
            held = point.bytes;
            if (at >= 0 && at < columns) raise(at, held);
        }
        for (; column < columns; ++column) raise(column, held);
        return highest;
    }

private:
    static constexpr int width = 80, height = 14;
    int column_of(double seconds, int columns) const {
        return int(columns * (seconds - begin_) / (ends_.back() - begin_));
    }
    double begin_ = 0;
    std::vector<double> ends_;
};

}  // namespace ultrascale::single_gpu
