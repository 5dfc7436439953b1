// --demo scales: the playbook's appendix A2, "Typical scales in LLM training", with a model's exact
// numbers beside its rules of thumb. Nothing is trained.
#pragma once

#include <cmath>

#include "lab/predict/estimate.h"
#include "lab/report/report.h"

namespace ultrascale::single_gpu {

// 4096, 16.78 M, 8.030 B: four digits.
inline std::string short_count(double n) {
    if (n < 1e5) return fmt::format("{:.0f}", n);
    int thousands = 2;  // at least M
    while (thousands < 4 && n >= std::pow(1000, thousands + 1)) ++thousands;
    return fmt::format("{:#.4g} {}", n / std::pow(1000, thousands), " KMBT"[thousands]);
}

inline void demo_scales(const StepShape& shape) {
    const LlamaConfig& c = shape.config;
    const double h = double(c.hidden), q = double(c.q_size()), kv = double(c.kv_size()),
                 F = double(c.ffn), L = double(c.layers), v = double(c.vocab),
                 s = double(shape.seq), tokens = s * double(shape.micro_batch),
                 n = double(parameter_count(c));
    const int64_t weight = dtype_bytes(shape.model.dtype), gradient = dtype_bytes(shape.grad_dtype);
    const double state_numbers = double(optimizer_bytes(shape.model.dtype)) / 4;
    print(fmt::format("  {:<23} {:<16} {:>9}   {:<21} {:>9} {:>10}", "", "the playbook's",
                      "elements", "exact", "elements", "bytes"));
    const auto row = [](const char* what, const char* book, double rough, const char* formula,
                        double exact, int64_t bytes) {
        print(fmt::format("  {:<23} {:<16} {:>9}   {:<21} {:>9} {:>10}", what, book,
                          short_count(rough), formula, short_count(exact),
                          format_bytes(exact * double(bytes))));
    };
    row("input tokens", "seq mbs", tokens, "seq mbs", tokens, 4);
    row("hidden state", "seq mbs h", tokens * h, "seq mbs h", tokens * h, weight);
    row("a weight: of q_proj", "h^2", h * h, "h H D", h * q, weight);
    row("  of down_proj", "4 h^2", 4 * h * h, "h F", h * F, weight);
    row("  its gradient", "4 h^2", 4 * h * h, "h F", h * F, gradient);
    const bool master = state_numbers == 3;  // and otherwise the two moments alone
    row("  its optimizer states", "6 * 4 h^2", 24 * h * h,
        master ? "3 h F in fp32" : "2 h F in fp32", state_numbers * h * F, 4);
    const double attention = h * (q + 2 * kv) + q * h, ffn = 3 * h * F;
    row("a layer's attention", "4 h^2", 4 * h * h, "h (H + 2 K) D + H D h", attention, weight);
    row("  feed-forward", "12 h^2", 12 * h * h, "3 h F", ffn, weight);
    row("all layers", "16 h^2 L", 16 * h * h * L, "... + 2 h each", (attention + ffn + 2 * h) * L,
        weight);
    const double heads = c.tied ? 1 : 2;
    row(c.tied ? "embedding, tied head" : "embedding, head", c.tied ? "v h" : "2 v h",
        heads * v * h, c.tied ? "v h" : "2 v h", heads * v * h, weight);
    const double rough = 16 * h * h * L + heads * v * h;
    row("parameters, N", "the sum", rough, "the sum + h", n, weight);
    row("gradients", "N", rough, "N", n, gradient);
    row("optimizer states", "6 N", 6 * rough, master ? "3 N in fp32" : "2 N in fp32",
        state_numbers * n, 4);
    if (master)
        print("  The playbook's 6 N are 16-bit numbers: 12 N bytes, as are 3 N numbers in fp32.");

    print("\nbytes that forward keeps for backward (the playbook's: a GPT in 16 bits)");
    const double kept = layer_activations(local_sizes(shape)).total();
    print(fmt::format("  a layer    seq mbs h (34 + 5 H seq / h) = {}, ours {}",
                      format_bytes(book_activations(shape) / L), format_bytes(kept)));
    print(fmt::format("  all layers {}, ours {}; with all else at the peak {}",
                      format_bytes(book_activations(shape)), format_bytes(kept * L),
                      format_bytes(double(peak_activation_bytes(local_sizes(shape))))));

    const double flops = model_flops_per_token(c, parameter_count(c), shape.seq) * tokens;
    print("\nTFLOP of a micro-batch: the playbook's 2 N and 4 N a token, and with attention's own");
    for (const auto& [pass, factor] : {std::pair{"forward", 2}, {"backward", 4}, {"both", 6}})
        print(fmt::format("  {:<9} {} N + {:>2} L H D seq   {:>10.4g} {:>10.4g}   {:+.1f} %", pass,
                          factor, 2 * factor, factor * n * tokens / 1e12, factor * flops / 6e12,
                          100 * (flops / (6 * n * tokens) - 1)));
}

}  // namespace ultrascale::single_gpu
