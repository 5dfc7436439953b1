#include "traffic.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace ultrascale::kernels {
namespace {

AttentionSize of(const Sizes& s) {
    return {double(s[0]), double(s[1]), double(s[2]), double(s[3])};
}

// The bytes of this kernel at this size by formula; 0: there is no formula for it.
double by_formula(const KernelResult& result) {
    const AttentionSize size = of(result.size);
    if (std::fmod(size.T, 64) != 0) return 0;
    return result.kernel->name == "attention_naive"   ? 32 * attention_naive_sectors(size)
           : result.kernel->name == "flash_attention" ? 32 * flash_attention_sectors(size)
                                                      : 0;
}
bool near(double count, double formula) { return count >= formula && count <= 1.05 * formula; }
double counted(const KernelResult& result) {  // 0: not observed
    double sectors = 0;
    for (const auto& [name, value] : result.seen)
        if (name == "load_sectors" || name == "store_sectors") sectors += value;
    return 32 * sectors;
}

std::string megabytes(double bytes) {
    return bytes == 0 ? "-" : fmt::format("{:.{}f}", bytes / 1e6, bytes < 1e8 ? 4 : 0);
}

}  // namespace

double standard_attention_bytes(const AttentionSize& s) {
    return 2 * (18 * s.square() + 12 * s.tensor());
}

double flash_attention_bytes(const AttentionSize& s, double keys_of_block) {
    const double n = s.T / keys_of_block;
    return 2 * (7 * n + 5) * s.tensor();
}

double attention_naive_sectors(const AttentionSize& s) {
    // Row t of S has t + 1 numbers in ceil((t + 1) / 8) sectors. The first kernel writes them, the
    // second reads them three times and writes them, and the third reads them.
    const double eights = s.T / 8, square_sectors = 6 * 8 * eights * (eights + 1) / 2;
    // A tile of 32 x 32 on or below the diagonal loads 32 rows of q, of k, and of v.
    const double tiles = s.T / 32 * (s.T / 32 + 1) / 2, row = s.D * 2 / 32;
    return s.B * s.H * (square_sectors + tiles * 3 * 32 * row + s.T * row);
}

double flash_attention_sectors(const AttentionSize& s) {
    // A block of 64 queries reads them, the keys and values up to the diagonal, and writes o.
    const double tiles = s.T / 64 * (s.T / 64 + 1) / 2, row = s.D * 2 / 32;
    return s.B * s.H * (2 * s.T * row + tiles * 2 * 64 * row);
}

std::string traffic(const std::vector<KernelResult>& results) {
    const AttentionSize s = of(size_of_slides);
    std::string text = fmt::format(
        "\nmemory traffic of attention at the FlashAttention paper's size: B {}, T {}, H {}, D {}\n"
        "  {:<42} {:>7} {:>6} {:>10} {:>8}  {}\n",
        s.B, s.T, s.H, s.D, "forward and backward, 16 bits", "GFLOP", "GB", "A100 ms", "H200 ms",
        "in the paper");
    const auto line = [&](const char* name, double products, double bytes, const char* paper) {
        const double flops = products * s.product_flops();
        const auto least = [&](double peak, double rate) {
            return fmt::format(">= {:.1f}", 1e3 * std::max(flops / peak, bytes / rate));
        };
        text += fmt::format("  {:<42} {:>7.1f} {:>6.2f} {:>10} {:>8}  {}\n", name, flops / 1e9,
                            bytes / 1e9, least(312e12, 1.555e12), least(989.5e12, 4.8e12), paper);
    };
    line("standard: 18 passes of T x T, 12 of T x D", 6, standard_attention_bytes(s),
         "66.6  40.3  41.7");
    line("FlashAttention: 33 passes of T x D", 7, flash_attention_bytes(s), "75.2   4.4   7.3");
    text += fmt::format(
        "  (the paper's FLOPs differ by {:.1f} GFLOP: one product of one head of each sequence)\n",
        s.product_flops() / s.H / 1e9);

    text += "\n  our kernels, forward and causal, without caches\n";
    text += fmt::format("  {:<18} {:<15} {:>9} {:>11} {:>11} {:>8}\n", "", "B, T, H, D", "GFLOP",
                        "formula MB", "counted MB", "ms");
    const auto ours = [&](const std::string& name, const Sizes& size, double bytes, double count,
                          double seconds) {
        const AttentionSize a = of(size);
        text += fmt::format(
            "  {:<18} {:<15} {:>9.4g} {:>11} {:>11} {:>8}{}\n", name,
            fmt::format("{}", fmt::join(size, ",")), a.product_flops() / 1e9, megabytes(bytes),
            megabytes(count), seconds > 0 ? fmt::format("{:.3f}", seconds * 1e3) : "-",
            count == 0 || bytes == 0 ? ""
                                     : fmt::format("  {:.3f} times{}", count / bytes,
                                                   near(count, bytes) ? "" : "   MISMATCH"));
    };
    for (const KernelResult& result : results)
        ours(result.kernel->name, result.size, by_formula(result), counted(result), result.seconds);
    if (std::ranges::none_of(results,
                             [](const KernelResult& r) { return r.size == size_of_slides; })) {
        ours("attention_naive", size_of_slides, 32 * attention_naive_sectors(s), 0, 0);
        ours("flash_attention", size_of_slides, 32 * flash_attention_sectors(s), 0, 0);
    }
    return text;
}

bool counted_as_by_formula(const std::vector<KernelResult>& results) {
    return std::ranges::all_of(results, [](const KernelResult& result) {
        return counted(result) == 0 || by_formula(result) == 0 ||
               near(counted(result), by_formula(result));
    });
}

}  // namespace ultrascale::kernels
