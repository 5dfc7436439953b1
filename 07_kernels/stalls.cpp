#include "stalls.h"

#include <fmt/format.h>

#include <algorithm>

namespace ultrascale::kernels {

double Clocks::longest() const { return std::max({multiply, shared, global}); }

const char* Clocks::reason() const {
    return longest() == multiply ? "math_pipe_throttle"
           : shared >= global    ? "mio_throttle"
                                 : "lg_throttle";
}

Clocks clocks_of(double multiply_adds, double shared_turns, double requests, double sectors) {
    return {multiply_adds / 128, shared_turns, std::max(requests, sectors / 4)};
}

std::string stalls(const Problem& problem, const std::vector<KernelResult>& results) {
    std::string text = fmt::format(
        "\nstalls: clocks of an SM for each multiply-add of a warp, by unit; the longest decides\n"
        "  {:<22} {:>11} {:>9} {:>8} {:>8} {:>11} {:>9}  {}\n",
        "", "FMA a load", "multiply", "shared", "global", "of the peak", "TFLOP/s", "stall");
    const double peak = 67e12;  // an H200's in fp32, by the data sheet
    for (const KernelResult& result : results) {
        if (result.seen.empty()) continue;
        const auto seen = [&](const char* name) {
            return std::ranges::find(result.seen, name, &std::pair<std::string, double>::first)
                ->second;
        };
        const double warp_fmas = problem.flops(result.size) / 2 / 32;
        const Clocks c = clocks_of(32 * warp_fmas,
                                   seen("shared_load_wavefronts") + seen("shared_store_wavefronts"),
                                   seen("load_requests") + seen("store_requests"),
                                   seen("load_sectors") + seen("store_sectors"));
        text += fmt::format(
            "  {:<22} {:>11.2f} {:>9.2f} {:>8.2f} {:>8.2f} {:>9.1f} % {:>9.1f}  {}\n",
            result.kernel->name, warp_fmas / (seen("load_requests") + seen("shared_load_requests")),
            c.multiply / warp_fmas, c.shared / warp_fmas, c.global / warp_fmas,
            100 * c.share_of_peak(), peak * c.share_of_peak() / 1e12, c.reason());
    }
    return text +
           "  at most, on an H200 (67 TFLOP/s); waiting for caches and barriers comes on top\n";
}

}  // namespace ultrascale::kernels
