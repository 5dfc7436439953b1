// Without a GPU: what each kernel does to memory, from the microscope (common/simt/microscope.h).
#ifndef ULTRASCALE_CUDA
#include <fmt/format.h>

#include "measure.h"
#include "simt/microscope.h"

namespace ultrascale::kernels {

void measure(const Problem& problem, const LadderOptions& options, const Sizes& size, std::vector<Rung>& rungs) {
    const Trial trial = make_trial(problem, size, options.seed);
    const double flops = problem.flops(size), bytes = problem.bytes(size);
    fmt::print("\n{}: {}. {:.3g} MFLOP, at least {:.4g} KB, {:.3g} FLOP/byte; checked at {} sizes, seed {}\n", problem.name,
               text(problem, size), flops / 1e6, bytes / 1e3, flops / bytes, rungs.empty() ? 0 : rungs[0].checked, options.seed);
    fmt::print("  {:<28} {:>8} {:>9} {:>9} {:>10} {:>10} {:>9} {:>6}  {}\n", "kernel", "error", "sectors/", "sectors/", "global", "bank",
               "threads", "races", "");
    fmt::print("  {:<28} {:>8} {:>9} {:>9} {:>10} {:>10} {:>9} {:>6}  {}\n", "", "", "load", "store", "KB / least", "conflicts", "of 32",
               "", "adds");
    for (Rung& rung : rungs) {
        simt::Microscope microscope;
        rung.kernel->run(trial.arguments);
        const simt::Observation seen = microscope.take();
        simt::Counts load, store, atomic, shared, all;
        for (const simt::KernelCounts& kernel : seen.kernels) {
            load += kernel.total(simt::Access::global_load);
            store += kernel.total(simt::Access::global_store);
            atomic += kernel.total(simt::Access::global_atomic);
            shared += kernel.total(simt::Access::shared_load), shared += kernel.total(simt::Access::shared_store);
            all += kernel.total();
        }
        rung.traffic = double(load.bytes_moved() + store.bytes_moved() + atomic.bytes_moved()) / bytes;
        if (!seen.races.empty()) rung.wrong = fmt::format("{} races", seen.races.size());
        const auto number = [](const simt::Counts& counts, double value, const char* unit) {
            return counts.requests ? fmt::format("{:.1f}{}", value, unit) : std::string("-");
        };
        fmt::print("  {:<28} {:>8.1e} {:>9} {:>9} {:>10.2f} {:>10} {:>9.1f} {:>6}  {}\n", rung.kernel->name, rung.error,
                   number(load, load.sectors_per_request(), ""), number(store, store.sectors_per_request(), ""), rung.traffic,
                   number(shared, shared.ways(), "-way"), all.active_threads(), seen.races.size(), rung.kernel->idea);
        if (options.by_line || !seen.races.empty()) fmt::print("{}", simt::table(seen));
    }
}

}  // namespace ultrascale::kernels
#endif
