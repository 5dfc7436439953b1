#include "ladder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "measure.h"

namespace ultrascale::kernels {
namespace {

// Checks at every size that is not timed, and drops a kernel at the first size where it is wrong.
void check_all(const Problem& problem, const LadderOptions& options, std::vector<Rung>& rungs) {
    std::vector<Sizes> sizes = problem.awkward;
    sizes.insert(sizes.end(), problem.observed.begin(), problem.observed.end());
    if (!options.size.empty()) sizes = {options.size};
    for (const Sizes& size : sizes) {
        const Trial trial = make_trial(problem, size, options.seed);
        const Answer answer = answer_of(problem, trial, options.size.empty());
        for (Rung& rung : rungs) {
            if (!rung.wrong.empty()) continue;
            try {
                const double error = error_of(rung.kernel->run, trial, answer);
                ++rung.checked;
                rung.wrong = verdict(problem, size, error);
                if (!rung.wrong.empty()) rung.wrong += races_of(*rung.kernel, trial);
                rung.error = std::isnan(error) ? error : std::max(rung.error, error);
            } catch (const std::logic_error& error) {  // an error that common/emulator finds
                rung.wrong = fmt::format("{}: {}", text(problem, size), error.what());
            } catch (const std::runtime_error&
                         error) {  // from CUDA: after an illegal access nothing runs on the device
                user_error("{}, {}: {}", rung.kernel->name, text(problem, size), error.what());
            }
        }
    }
}

}  // namespace

std::string label(const Problem& problem, const Rung& rung, const std::vector<Sizes>& sizes,
                  const std::vector<Rung>& right) {
    if (sizes.size() == 1) return rung.kernel->name;
    return right.size() == 1 ? text(problem, rung.size)
                             : fmt::format("{} {}", rung.kernel->name, fmt::join(rung.size, ","));
}

void print_ideas(const std::vector<Rung>& right) {
    for (const Rung& rung : right)
        fmt::print("  {:<28} {}\n", rung.kernel->name, rung.kernel->idea);
}

std::vector<Rung> climb(const Problem& problem, const std::vector<Kernel>& kernels,
                        const LadderOptions& options) {
    std::vector<Rung> rungs;
    for (const Kernel& kernel : kernels)
        if (why_skipped(kernel).empty()) rungs.push_back({.kernel = &kernel});
    if (!rungs.empty()) check_all(problem, options, rungs);
    const auto print_checked = [&](const Rung& rung) {
        fmt::print("  {:<28} {:8.1e} of {} sizes  {}\n", rung.kernel->name, rung.error,
                   rung.checked, rung.wrong.empty() ? "ok" : "WRONG");
        if (!rung.wrong.empty()) fmt::print("      WRONG at {}\n", rung.wrong);
    };
    if (options.check_only) {
        fmt::print("\n{}, against float64 (<= {:.0e})\n", problem.name, problem.tolerance);
        for (const Rung& rung : rungs) print_checked(rung);
    } else {
        std::vector<Rung> right, wrong;
        for (const Rung& rung : rungs) (rung.wrong.empty() ? right : wrong).push_back(rung);
        const std::vector<Sizes>& own = on_gpu ? problem.timed : problem.observed;
        rungs = measure(problem, options,
                        options.size.empty() ? own : std::vector<Sizes>{options.size}, right);
        for (const Rung& rung : wrong) print_checked(rung), rungs.push_back(rung);
    }
    for (const Kernel& kernel : kernels)
        if (const std::string why = why_skipped(kernel); !why.empty())
            fmt::print("  {:<28} skipped: {}\n", kernel.name, why);
    return rungs;
}

}  // namespace ultrascale::kernels
