// Formats a microscope's observation as text.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "microscope.h"

namespace simt {

namespace {

constexpr const char* names[] = {"global load", "global store", "global atomic",
                                 "shared load", "shared store", "shared atomic"};
constexpr size_t width = 100;

std::string cut(const std::string& text) {
    return text.size() <= width ? text : fmt::format("{:.{}}...", text, width - 3);
}

std::string plural(int64_t count, const char* what, const char* ending = "s") {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : ending);
}

constexpr const char* columns = "       {:<14} {:>10} {:>6} {:>6} {:>6} {:>6}  {}\n";

// The average cost of a request, and the lowest possible cost.
std::string row(Access access, const Counts& counts, const std::string& bytes) {
    const bool shared = is_shared(access);
    const auto each = [&](int64_t sum) {
        return fmt::format("{:.1f}", double(sum) / double(std::max<int64_t>(counts.requests, 1)));
    };
    return fmt::format(fmt::runtime(columns), names[int(access)], counts.requests,
                       fmt::format("{:.1f}", counts.active_threads()), bytes,
                       each(shared ? counts.wavefronts : counts.sectors),
                       each(shared ? counts.ideal_wavefronts : counts.ideal_sectors),
                       shared ? "wavefronts" : "sectors");
}

// Each line of the source, followed by its kinds of accesses.
std::string lines(const KernelCounts& kernel) {
    std::string text = fmt::format(fmt::runtime(columns), "", "requests", "lanes", "bytes", "each",
                                   "ideal", "unit");
    const std::string* file = &kernel.file;
    int number = 0;
    for (const LineCounts& line : kernel.lines) {
        if (line.file != *file) text += fmt::format("  {}\n", line.file);
        if (line.file != *file || line.line != number)
            text += cut(fmt::format("  {:>4} {}", line.line, line.source)) + "\n";
        file = &line.file, number = line.line;
        text += row(line.access, line.counts, std::to_string(line.bytes));
    }
    return text;
}

std::string totals(const KernelCounts& kernel) {
    std::string text = kernel.lines.empty() ? "" : "   all\n";
    for (int i = 0; i < 6; ++i) {
        const Counts counts = kernel.total(Access(i));
        if (counts.requests == 0) continue;
        text += row(Access(i), counts, "");
        if (!is_shared(Access(i)))
            text +=
                fmt::format("         asked for {} bytes, moved {}, ideal {}\n", counts.bytes_asked,
                            counts.bytes_moved(), 32 * counts.ideal_sectors);
        else if (counts.wavefronts > counts.ideal_wavefronts)
            text += fmt::format("         {:.1f}-way bank conflicts\n", counts.ways());
    }
    return text;
}

std::string side(const Race::Side& side) {
    return fmt::format("  {} by thread {} at {}:{}\n", names[int(side.access)], side.thread,
                       side.file, side.line) +
           cut("    " + side.source) + "\n";
}

}  // namespace

std::string table(const Observation& observation) {
    std::string text;
    for (const KernelCounts& kernel : observation.kernels)
        text += cut(fmt::format("{} ({}:{})", kernel.name, kernel.file, kernel.line)) +
                fmt::format("\n  {}, {}, {}\n", plural(kernel.launches, "launch", "es"),
                            plural(kernel.blocks, "block"), plural(kernel.threads, "thread")) +
                lines(kernel) + totals(kernel) + "\n";
    for (const Race& race : observation.races)
        text += fmt::format("RACE in {}\n  block ({}, {}, {}), {}, seen {} times\n{}{}",
                            race.kernel, race.block.x, race.block.y, race.block.z,
                            race.offset < 0
                                ? "in a __shared__ array"
                                : fmt::format("byte {} of dynamic shared memory", race.offset),
                            race.count, side(race.one), side(race.other));
    return text;
}

}  // namespace simt
