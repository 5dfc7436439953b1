// A microscope's observation as text.
#include <fmt/format.h>

#include "microscope.h"

namespace simt {

namespace {

constexpr const char* names[] = {"global load", "global store", "global atomic", "shared load", "shared store", "shared atomic"};
constexpr size_t width = 120;

std::string cut(const std::string& text, size_t columns) { return text.size() <= columns ? text : text.substr(0, columns - 3) + "..."; }

std::string plural(int64_t count, const char* what, const char* ending = "s") {
    return fmt::format("{} {}{}", count, what, count == 1 ? "" : ending);
}

// What a request needs and what it would need at best.
std::string cost(const Counts& counts, bool shared) {
    const double requests = double(std::max<int64_t>(counts.requests, 1));
    return shared ? fmt::format("{:>5.1f} {:>5.1f} wavefronts", double(counts.wavefronts) / requests,
                                double(counts.ideal_wavefronts) / requests)
                  : fmt::format("{:>5.1f} {:>5.1f} sectors   ", double(counts.sectors) / requests, double(counts.ideal_sectors) / requests);
}

std::string lines(const KernelCounts& kernel) {
    std::string text = fmt::format("  {:>5} {:<13} {:>10} {:>5} {:>5}  {:>5} {:>5} {:<10}  {}\n", "line", "access", "requests", "lanes",
                                   "bytes", "each", "ideal", "", "source");
    const std::string* file = &kernel.file;
    for (const LineCounts& line : kernel.lines) {
        if (line.file != *file) text += fmt::format("  {}\n", line.file);
        file = &line.file;
        const std::string begin =
            fmt::format("  {:>5} {:<13} {:>10} {:>5.1f} {:>5}  {}  ", line.line, names[int(line.access)], line.counts.requests,
                        line.counts.active_threads(), line.bytes, cost(line.counts, is_shared(line.access)));
        text += begin + cut(line.source, width - begin.size()) + "\n";
    }
    return text;
}

std::string totals(const KernelCounts& kernel) {
    std::string text;
    for (int i = 0; i < 6; ++i) {
        const Counts counts = kernel.total(Access(i));
        if (counts.requests == 0) continue;
        text += fmt::format("  all   {:<13} {:>10} {:>5.1f} {:>5}  {}", names[i], counts.requests, counts.active_threads(), "",
                            cost(counts, is_shared(Access(i))));
        if (!is_shared(Access(i)))
            text += fmt::format("  asked for {} bytes, moved {}, ideal {}", counts.bytes_asked, counts.bytes_moved(),
                                32 * counts.ideal_sectors);
        else if (counts.wavefronts > counts.ideal_wavefronts)
            text += fmt::format("  {:.1f}-way bank conflicts", counts.ways());
        text += "\n";
    }
    return text;
}

std::string side(const Race::Side& side) {
    return fmt::format("    {} by thread {} at {}:{}  {}\n", names[int(side.access)], side.thread, side.file, side.line,
                       cut(side.source, 60));
}

}  // namespace

std::string table(const Observation& observation) {
    std::string text;
    for (const KernelCounts& kernel : observation.kernels)
        text += fmt::format("{} ({}:{}): {}, {}, {}\n", kernel.name, kernel.file, kernel.line, plural(kernel.launches, "launch", "es"),
                            plural(kernel.blocks, "block"), plural(kernel.threads, "thread")) +
                lines(kernel) + totals(kernel) + "\n";
    for (const Race& race : observation.races)
        text +=
            fmt::format("RACE in {}, block ({}, {}, {}), {}, seen {} times\n{}{}", race.kernel, race.block.x, race.block.y, race.block.z,
                        race.offset < 0 ? "in a __shared__ array" : fmt::format("byte {} of dynamic shared memory", race.offset),
                        race.count, side(race.one), side(race.other));
    return text;
}

}  // namespace simt
